package mongosim

import (
	"fmt"
	"time"
)

// Throttle refuses statements of writes with code 16500 and a hint, as Cosmos DB does when the request units of the
// second are used up: some documents of one unordered insert are stored, others are not.
type Throttle struct {
	// Rate is how many statements a second are let through, Burst how many at once. Both count on the server's clock.
	Rate  float64
	Burst int
	// Refuse, if set, decides instead: it is called for every statement and says how long the client should stay away,
	// or 0 to let the statement through.
	Refuse func() time.Duration

	tokens float64
	filled time.Time
}

// SetThrottle begins or, with nil, ends throttling.
func (s *Server) SetThrottle(t *Throttle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t != nil {
		t.tokens, t.filled = float64(t.Burst), s.now()
	}
	s.throttle = t
}

func (t *Throttle) take(now time.Time) error {
	if t.Refuse != nil {
		if d := t.Refuse(); d > 0 {
			return throttled(d)
		}
		return nil
	}
	t.tokens = min(float64(t.Burst), t.tokens+now.Sub(t.filled).Seconds()*t.Rate)
	t.filled = now
	if t.tokens < 1 {
		return throttled(time.Duration((1 - t.tokens) / t.Rate * float64(time.Second)))
	}
	t.tokens--
	return nil
}

// throttled has the form of Cosmos DB's answer (Microsoft's documentation, "Prevent rate-limiting errors").
func throttled(d time.Duration) *Error {
	ms := max(1, (d+time.Millisecond-1)/time.Millisecond)
	return &Error{Code: codeTooManyRequests, Message: fmt.Sprintf("Error=16500, RetryAfterMs=%d, Details='Request rate is large. More Request Units may be needed, so no changes were made.'", ms)}
}
