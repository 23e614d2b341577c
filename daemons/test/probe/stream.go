// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Streamed is the result of a Stream.
type Streamed struct {
	Sent, Answered int
	Took           time.Duration
}

// roomy is a buffer size for the datagrams that arrive while a process gets no CPU for some
// seconds.
const roomy = 16 << 20

// Stream sends a datagram to the server at addr each interval until ctx ends, and then waits for
// late answers. Like the server, Stream needs root for a large socket buffer: a datagram that does
// not fit into the buffer would count as lost.
func Stream(ctx context.Context, addr string, interval time.Duration) (Streamed, error) {
	c, err := net.Dial("udp", addr)
	if err != nil {
		return Streamed{}, err
	}
	defer c.Close()
	if err := enlarge(c); err != nil {
		return Streamed{}, err
	}
	var answered atomic.Int64
	done := make(chan error, 1)
	go func() { done <- count(c, &answered) }()
	start := time.Now()
	sent, err := send(ctx, c, interval)
	took := time.Since(start)
	c.SetReadDeadline(time.Now().Add(Timeout))
	err = errors.Join(err, <-done)
	return Streamed{sent, int(answered.Load()), took}, err
}

// enlarge gives a UDP socket a large buffer, beyond the limit that users have.
func enlarge(c any) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, roomy)
	})
	return errors.Join(err, set)
}

// send sends until ctx ends. After a delay it sends at most ten of the missed datagrams at once.
func send(ctx context.Context, c net.Conn, interval time.Duration) (sent int, err error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for start := time.Now(); ; {
		select {
		case <-ctx.Done():
			return sent, nil
		case <-tick.C:
		}
		for due := min(int(time.Since(start)/interval), sent+10); sent < due; sent++ {
			if _, err := c.Write([]byte("who\n")); err != nil {
				return sent, err
			}
		}
	}
}

// count counts answers until the deadline of the connection.
func count(c net.Conn, answered *atomic.Int64) error {
	buf := make([]byte, 1500)
	for {
		_, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		answered.Add(1)
	}
}
