// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// The traffic uses blocking sockets without package net, so that Go's poller adds no delay between
// packets.

// A pod's server has one port for each kind of traffic.
const (
	sinkPort    = 9001 // reads everything and does not answer
	echoPort    = 9002 // returns each byte
	answerPort  = 9003 // returns one byte and waits for the end of the connection
	connectors  = 4    // clients that connect at the same time
	streamBytes = 128 << 10
)

// startServer starts the servers of a pod. They end with the process.
func startServer(sandbox string) error {
	return inSandbox(sandbox, func() error {
		for port, serve := range map[int]func(int){sinkPort: sink, echoPort: echo, answerPort: echo} {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
				return fmt.Errorf("bind port %d: %w", port, err)
			}
			if err := unix.Listen(fd, 1024); err != nil {
				return err
			}
			for range connectors {
				go accept(fd, serve)
			}
		}
		return nil
	})
}

func accept(fd int, serve func(int)) {
	for {
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
				continue
			}
			return
		}
		serve(conn)
		unix.Close(conn)
	}
}

func sink(conn int) {
	buf := make([]byte, streamBytes)
	for {
		if n, err := again(func() (int, error) { return unix.Read(conn, buf) }); n <= 0 || err != nil {
			return
		}
	}
}

func echo(conn int) {
	_ = unix.SetsockoptInt(conn, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // if this fails, the echo is slow, and the table shows that
	buf := make([]byte, 1)
	for {
		if n, err := again(func() (int, error) { return unix.Read(conn, buf) }); n <= 0 || err != nil {
			return
		}
		if _, err := again(func() (int, error) { return unix.Write(conn, buf) }); err != nil {
			return
		}
	}
}

// again repeats a system call that a signal interrupted. Go's runtime sends such signals to its
// threads.
func again(f func() (int, error)) (n int, err error) {
	for {
		if n, err = f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// traffic sends one kind of traffic from a pod to an address for some time. It returns the rate
// in the unit of the kind.
func traffic(sandbox, kind, to string, d time.Duration) (rate float64, err error) {
	addr, err := netip.ParseAddr(to)
	if err != nil {
		return 0, err
	}
	switch kind {
	case "stream":
		rate, err = clients(sandbox, 1, d, addr, sinkPort, stream)
		return rate * 8 / 1e9, err
	case "requests":
		return clients(sandbox, 1, d, addr, echoPort, requests)
	case undisturbed:
		return undisturbedRequests(sandbox, d, addr)
	case "connections":
		return clients(sandbox, connectors, d, addr, answerPort, connections)
	}
	return 0, fmt.Errorf("no traffic %q", kind)
}

// clients runs n clients at the same time and returns their rate per second.
func clients(sandbox string, n int, d time.Duration, to netip.Addr, port int, run func(func() (int, error), time.Time) (int64, error)) (float64, error) {
	var g errgroup.Group
	var total atomic.Int64
	dial := func() (int, error) { return connect(to, port) }
	start := time.Now()
	for range n {
		g.Go(func() error {
			return inSandbox(sandbox, func() error {
				count, err := run(dial, start.Add(d))
				total.Add(count)
				return err
			})
		})
	}
	err := g.Wait()
	return float64(total.Load()) / time.Since(start).Seconds(), err
}

func connect(to netip.Addr, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(int64(5 * time.Second))
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	// The client ends a connection with a reset. Otherwise the ports of the last 60 seconds would
	// wait in TIME_WAIT, and the client would have no port left.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		unix.Close(fd)
		return -1, err
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: to.As4()})
	if errors.Is(err, unix.EINTR) {
		err = connected(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to %s port %d: %w", to, port, err)
	}
	return fd, nil
}

// connected waits for the end of a connect that a signal interrupted. The kernel goes on with the
// connect.
func connected(fd int) error {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := again(func() (int, error) { return unix.Poll(poll, 5000) })
	if err != nil {
		return err
	}
	if n == 0 {
		return unix.ETIMEDOUT
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	return errnoErr(unix.Errno(code))
}

func stream(dial func() (int, error), end time.Time) (count int64, err error) {
	fd, err := dial()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	buf := make([]byte, streamBytes)
	for time.Now().Before(end) {
		n, err := again(func() (int, error) { return unix.Write(fd, buf) })
		if err != nil {
			return count, fmt.Errorf("stream: %w", err)
		}
		count += int64(n)
	}
	return count, nil
}

func requests(dial func() (int, error), end time.Time) (count int64, err error) {
	fd, err := dial()
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	for ; time.Now().Before(end); count++ {
		if err := request1(fd); err != nil {
			return count, fmt.Errorf("request %d: %w", count, err)
		}
	}
	return count, nil
}

// undisturbedRequests returns the rate of requests in the fastest twentieth of the time.
func undisturbedRequests(sandbox string, d time.Duration, to netip.Addr) (rate float64, err error) {
	const batch = 100
	var took []time.Duration
	err = inSandbox(sandbox, func() error {
		fd, err := connect(to, echoPort)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for end := time.Now().Add(d); time.Now().Before(end); {
			start := time.Now()
			for range batch {
				if err := request1(fd); err != nil {
					return err
				}
			}
			took = append(took, time.Since(start))
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	slices.Sort(took)
	return batch / took[len(took)/20].Seconds(), nil
}

// request1 sends one byte and waits until the byte comes back.
func request1(fd int) error {
	buf := []byte{1}
	if _, err := again(func() (int, error) { return unix.Write(fd, buf) }); err != nil {
		return err
	}
	n, err := again(func() (int, error) { return unix.Read(fd, buf) })
	if err == nil && n != 1 {
		err = errors.New("the server closed the connection")
	}
	return err
}

func connections(dial func() (int, error), end time.Time) (count int64, err error) {
	for ; time.Now().Before(end); count++ {
		fd, err := dial()
		if err != nil {
			return count, err
		}
		err = request1(fd)
		unix.Close(fd)
		if err != nil {
			return count, fmt.Errorf("connection %d: %w", count, err)
		}
	}
	return count, nil
}
