// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// firstFD is the first descriptor that systemd passes (sd_listen_fds(3)).
const firstFD = 3

// listener returns the socket that was passed, or a new one at path.
func listener(path string) (net.Listener, error) {
	return passedOr(func() (net.Listener, error) { return listen(path) })
}

// passedOr returns the socket that systemd or our own --detach has passed, or a new one.
func passedOr(create func() (net.Listener, error)) (net.Listener, error) {
	if os.Getenv(inherited) == strconv.Itoa(firstFD) { // passed by our own --detach
		l, err := fromFD()
		if ul, ok := l.(*net.UnixListener); ok {
			ul.SetUnlinkOnClose(true) // we must remove this socket file; systemd removes its own
		}
		return l, errors.Join(err, os.Unsetenv(inherited))
	}
	n, err := passed()
	switch {
	case err != nil:
		return nil, err
	case n > 1:
		return nil, fmt.Errorf("Too many (%v) FDs passed through socket activation", n)
	case n == 1:
		return fromFD()
	}
	return create()
}

// activated reports whether the environment says that descriptors were passed to this process.
func activated() bool {
	return os.Getenv("LISTEN_FDS") != "" && os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid())
}

// passed returns the number of descriptors that were passed to this process. It also removes
// the variables from the environment, so that children do not read them.
func passed() (int, error) {
	if !activated() {
		return 0, nil
	}
	fds := os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return 0, err
		}
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("invalid LISTEN_FDS %q", fds)
	}
	return n, nil
}

// fromFD returns the socket that was passed.
func fromFD() (net.Listener, error) {
	unix.CloseOnExec(firstFD)
	f := os.NewFile(uintptr(firstFD), "socket")
	defer f.Close() //nolint:errcheck // the listener has a copy
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("use passed socket: %w", err)
	}
	return l, nil
}

// socketMode is the mode in the systemd unit: user and group of the socket, root, may connect.
const socketMode = 0o660

// listenTime limits the wait for the lock. Many keepers may start at once, and each looks for
// another listener. All of them together take less than this time.
const listenTime = 30 * time.Second

// listen creates a socket that only root can access. It replaces a socket file on which no
// process listens. Keepers that start at the same time take a lock, so one creates its socket
// after the other.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	unlock, err := lock(context.Background(), path+".lock", listenTime)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if alive(path) {
		return nil, fmt.Errorf("listen on %s: %w: another keeper has it", path, unix.EADDRINUSE)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replace dead socket: %w", err)
	}
	return bind(path)
}

// bind makes the socket with its mode at once: who connects before a change of the mode stays
// connected. The socket must have its own name from the beginning, because a detached keeper removes
// it by that name. The umask is the whole process's, which does nothing else at its start.
func bind(path string) (net.Listener, error) {
	const all = 0o777
	defer unix.Umask(unix.Umask(all &^ socketMode))
	return net.Listen("unix", path)
}

// alive reports whether a process listens on the socket.
func alive(path string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, unix.EAGAIN) // too busy to answer
	}
	conn.Close() //nolint:errcheck // no data was written
	return true
}
