package job

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals returns the signals that ask the process to end.
func Signals() <-chan os.Signal {
	// With SIGPIPE a reader of the output that goes away, as in import … | head, would kill the batch half-way.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) { // nohup has SIGHUP ignored
			signal.Notify(signals, s)
		}
	}
	return signals
}

// Watch takes one step for each signal that comes, until there is none left. The caller calls done when none of this
// matters any more.
func Watch(signals <-chan os.Signal, steps ...func(os.Signal)) (done func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for _, step := range steps {
			select {
			case s := <-signals:
				step(s)
			case <-over:
				return
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

// Interrupted is the cause of a context that a signal has ended.
type Interrupted struct{ Signal os.Signal }

func (e *Interrupted) Error() string { return "interrupted by " + SignalName(e.Signal) }

// SignalName is what people call a signal.
func SignalName(s os.Signal) string {
	switch s {
	case os.Interrupt:
		return "SIGINT"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGHUP:
		return "SIGHUP"
	}
	return s.String()
}
