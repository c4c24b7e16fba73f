//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package localmongo

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock, or returns a nil unlock if another process has it.
func tryLock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return func() { f.Close() }, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, &os.PathError{Op: "flock", Path: file, Err: err}
}
