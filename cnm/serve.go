// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// drain is how long running calls may take when a server ends whose handler has
// no limit of its own.
const drain = 10 * time.Second

// drain is long enough for a call that has just begun, and for its answer.
func (h *Handler) drain() time.Duration {
	if h.Timeout > 0 {
		return h.Timeout + time.Second
	}
	return drain
}

// Serve answers calls on l until ctx ends, then lets running ones finish, for
// as long as Timeout gives each. It closes l. A socket that systemd made (socket activation) serves as well as
// ListenUnix's: while nobody serves it, the kernel keeps calls waiting.
func Serve(ctx context.Context, l net.Listener, h *Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: drain}
	done := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.drain())
		defer cancel()
		done <- errors.Join(srv.Shutdown(ctx), srv.Close())
	})
	err := srv.Serve(l)
	if !stop() && errors.Is(err, http.ErrServerClosed) {
		return <-done
	}
	return fmt.Errorf("serve %s: %w", l.Addr(), err)
}

// ListenUnix makes the socket a driver is found at (SocketDir/NAME.sock). It is
// root's alone, or, with a gid of 0 or more, that group's too: who may connect
// may have the host's network changed. Directories that are missing are made so
// that nobody else passes them, or, for a group, lists them. What stands at path is replaced when
// nobody answers there.
func ListenUnix(path string, gid int) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), dirMode(gid)); err != nil {
		return nil, fmt.Errorf("make directory of socket: %w", err)
	}
	if err := vacant(path); err != nil {
		return nil, err
	}
	if err := removeSocket(path); err != nil {
		return nil, err
	}
	l, err := listenAt(path, gid)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return &unixListener{l, path}, nil
}

// dirMode is for directories that are missing. Docker makes /run/docker for root
// alone, for the sockets of all drivers, and leaves one that is there as it is.
func dirMode(gid int) os.FileMode {
	if gid >= 0 {
		return 0o711
	}
	return 0o700
}

// vacant refuses a path that somebody listens at. Whoever is too busy to be
// connected to, or not to be asked by us, is somebody.
func vacant(path string) error {
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		return errors.Join(fmt.Errorf("listen at %s: somebody else does", path), c.Close())
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return nil
	}
	return fmt.Errorf("listen at %s: somebody else may: %w", path, err)
}

// listenAt makes the socket in a directory of root's alone and moves it out when
// its mode is right: whatever the umask is, nobody else connects before.
func listenAt(path string, gid int) (l *net.UnixListener, err error) {
	private := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"~")
	if err := os.RemoveAll(private); err != nil { // a kill left it
		return nil, err
	}
	if err := os.Mkdir(private, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(private)) }()
	temp := filepath.Join(private, "s")
	if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"}); err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := publish(temp, path, gid); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func publish(temp, path string, gid int) error {
	mode := os.FileMode(0o600)
	if gid >= 0 {
		mode = 0o660
		if err := os.Chown(temp, -1, gid); err != nil {
			return err
		}
	}
	if err := os.Chmod(temp, mode); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// removeSocket removes a socket that is left over, and nothing else.
func removeSocket(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at %s: %w", path, err)
	case fi.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("listen at %s: there is something else than a socket", path)
	}
	return os.Remove(path)
}

type unixListener struct {
	net.Listener
	path string
}

// Close removes the socket too: before, as what stands there after may be a
// successor's.
func (l *unixListener) Close() error {
	return errors.Join(removeSocket(l.path), l.Listener.Close())
}
