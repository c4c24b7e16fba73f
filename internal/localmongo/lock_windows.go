package localmongo

import (
	"errors"
	"os"
	"syscall"
)

// errSharingViolation is ERROR_SHARING_VIOLATION, which package syscall does not name.
const errSharingViolation = syscall.Errno(32)

// tryLock takes the lock, or returns a nil unlock if another process has it. An open file that may not be shared is the
// lock.
func tryLock(file string) (unlock func(), err error) {
	name, err := syscall.UTF16PtrFromString(file)
	if err != nil {
		return nil, err
	}
	const notShared = 0
	h, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, notShared, nil,
		syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	switch {
	case err == nil:
		return func() { syscall.CloseHandle(h) }, nil
	case errors.Is(err, errSharingViolation):
		return nil, nil
	}
	return nil, &os.PathError{Op: "open", Path: file, Err: err}
}
