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

// drain is how long calls may take after the server has been told to end, if the handler has no
// time limit.
const drain = 10 * time.Second

// drain returns a time that is long enough for a call that has just begun, and for its answer.
func (h *Handler) drain() time.Duration {
	if h.Timeout > 0 {
		return h.Timeout + time.Second
	}
	return drain
}

// Serve answers calls on l until ctx ends. Then it waits for running calls, at most for their
// Timeout, and closes l. l may come from ListenUnix, or from systemd (socket activation). With
// systemd, the kernel queues calls while no process serves.
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

// ListenUnix makes the socket at which Docker finds a driver (SocketDir/NAME.sock). Only root
// may connect, and also the group gid if gid is 0 or more. A program that may connect can make
// the driver change the host's network. ListenUnix creates missing directories so that other
// users cannot enter them; with a group, others may enter but not list them. It replaces a
// socket at path if no process answers there.
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

// dirMode returns the mode of new directories. Docker creates /run/docker for root alone, for
// the sockets of all drivers, and does not change an existing one.
func dirMode(gid int) os.FileMode {
	if gid >= 0 {
		return 0o711
	}
	return 0o700
}

// vacant returns an error if another process listens at a path, even if that process is too busy to
// accept, or if we have no permission to connect.
func vacant(path string) error {
	c, err := net.Dial("unix", path)
	switch {
	case err == nil:
		return errors.Join(fmt.Errorf("listen at %s: another process does", path), c.Close())
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return nil
	}
	return fmt.Errorf("listen at %s: another process may: %w", path, err)
}

// listenAt makes the socket in a directory that only root may enter, and moves the socket to its
// path when the socket's mode is right. So no other user can connect before, whatever the umask
// is.
func listenAt(path string, gid int) (l *net.UnixListener, err error) {
	private := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"~")
	if err := os.RemoveAll(private); err != nil { // left by a process that was killed
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

// removeSocket removes a socket that an earlier process left. It refuses to remove any other
// file.
func removeSocket(path string) error {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at %s: %w", path, err)
	case fi.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("listen at %s: it exists and is not a socket", path)
	}
	return os.Remove(path)
}

type unixListener struct {
	net.Listener
	path string
}

// Close removes the socket before it closes the listener. After closing, the path may belong to
// another process.
func (l *unixListener) Close() error {
	return errors.Join(removeSocket(l.path), l.Listener.Close())
}
