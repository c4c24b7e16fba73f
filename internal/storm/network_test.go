package storm

import (
	"context"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/intact-go/intact/internal/faultwire"
)

// network lies between a wire and the server. Every message takes a while of its own, which the seed decides: what happens
// in which order is then for the most part the seed's doing, not that of whoever schedules the goroutines.
type network struct {
	server faultwire.Dialer
	seed   uint64
	number uint64 // of the network
	dialed atomic.Uint64
	slow   atomic.Int64 // nanoseconds that a request takes longer
}

// DialContext implements faultwire.Dialer.
func (n *network) DialContext(ctx context.Context, net, address string) (net.Conn, error) {
	conn, err := n.server.DialContext(ctx, net, address)
	if err != nil {
		return nil, err
	}
	number := n.number<<32 | n.dialed.Add(1)
	return &line{
		Conn:  conn,
		slow:  &n.slow,
		there: rand.New(rand.NewPCG(n.seed, number<<1)),
		back:  rand.New(rand.NewPCG(n.seed, number<<1|1)),
	}, nil
}

// line is a connection of a network. It is read by one goroutine at a time, and written by one.
type line struct {
	net.Conn
	slow        *atomic.Int64
	there, back *rand.Rand
}

func (l *line) Write(message []byte) (int, error) {
	time.Sleep(time.Duration(l.slow.Load() + l.there.Int64N(int64(way))))
	return l.Conn.Write(message)
}

func (l *line) Read(buffer []byte) (int, error) {
	n, err := l.Conn.Read(buffer)
	time.Sleep(time.Duration(l.back.Int64N(int64(way))))
	return n, err
}
