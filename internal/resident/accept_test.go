// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// full is a listener whose process has no file descriptor for some tries.
type full struct {
	net.Listener
	tries int // -1 means for ever
	tried func()
}

func (f *full) Accept() (net.Conn, error) {
	if f.tried != nil {
		f.tried()
	}
	if f.tries == 0 {
		return nil, net.ErrClosed
	}
	f.tries--
	return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", unix.EMFILE)}
}

func (f *full) Close() error { return nil }

func TestPatient(t *testing.T) {
	lines := 0
	l := PatientListener(&full{tries: 3}, func(string, ...any) { lines++ })
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || lines != 1 {
		t.Errorf("%v, logged %d times, want once", err, lines)
	}
}

// TestClosedWhileItWaits closes a listener that waits for a descriptor. The wait ends at once.
func TestClosedWhileItWaits(t *testing.T) {
	f := &full{tries: -1}
	l := PatientListener(f, t.Logf)
	f.tried = func() { l.Close() } //nolint:errcheck // it returns nil
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
