// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Call is the call of a plugin process.
type Call struct {
	Name   string   // the name by which the program was executed
	Env    []string // the environment, K=V
	Input  []byte   // standard input
	Parent int      // the process that executed the plugin
	Stderr Stderr

	conn    *net.UnixConn
	ended   chan struct{} // closed when the output is written or the connection has ended
	acked   bool          // the plugin process has written the output; valid when ended is closed
	settled atomic.Bool   // the plugin process has its answer, and needs nothing else
}

// Getenv returns a variable of the environment, or "".
func (c *Call) Getenv(key string) string {
	for _, kv := range c.Env {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			return v
		}
	}
	return ""
}

var (
	errTooLong = errors.New("the output is too long")
	errUnread  = errors.New("the plugin process ended before it wrote the result")
)

// Answer sends the exit status and the output of the call. It returns an error if the plugin process
// could not write the output.
func (c *Call) Answer(status int, output []byte) error {
	if len(output) > maxOutput {
		return errTooLong
	}
	text := c.Stderr.finish()
	packet := binary.NativeEndian.AppendUint32(make([]byte, 0, answerSize+len(text)+len(output)), uint32(status))
	packet = append(append(binary.NativeEndian.AppendUint32(packet, uint32(len(text))), text...), output...)
	if err := c.grow(len(packet)); err != nil {
		return fmt.Errorf("answer a plugin process: %w", err)
	}
	if _, err := c.conn.Write(packet); err != nil {
		return fmt.Errorf("answer a plugin process: %w", err)
	}
	if len(output) > 0 {
		if <-c.ended; !c.acked {
			return errUnread
		}
	}
	c.settled.Store(true)
	return nil
}

// grow enlarges the connection's send buffer for a packet longer than the kernel's default.
func (c *Call) grow(size int) error {
	const plenty = 64 << 10
	if size < plenty {
		return nil
	}
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*maxOutput)
	})
	return errors.Join(err, failed)
}

// watch waits until the plugin process reports that it has written the output, or until it ends.
func (c *Call) watch() {
	defer close(c.ended)
	var b [1]byte
	n, err := c.conn.Read(b[:])
	c.acked = err == nil && n == 1 && b[0] == written
}

var errRequest = errors.New("it is not a request")

// parse reads a request.
func (c *Call) parse(request []byte) error {
	if len(request) < headerSize {
		return errRequest
	}
	env, input := binary.NativeEndian.Uint64(request), binary.NativeEndian.Uint64(request[8:])
	request = request[headerSize:]
	if input > maxInput || input > uint64(len(request)) || env != uint64(len(request))-input || env == 0 || request[env-1] != 0 {
		return errRequest
	}
	c.Input = bytes.Clone(request[env:])
	words := strings.Split(string(request[:env-1]), "\x00")
	c.Name, c.Env = words[0], firsts(words[1:])
	return nil
}

// firsts keeps only the first value of each variable: a Go program uses the first one, but other programs
// use the last.
func firsts(env []string) (unique []string) {
	known := make(map[string]bool, len(env))
	for _, kv := range env {
		if k, _, _ := strings.Cut(kv, "="); !known[k] {
			known[k] = true
			unique = append(unique, kv)
		}
	}
	return unique
}

// dead reports whether the plugin process has ended. The goroutine that reads may not have noticed it yet.
func (c *Call) dead() bool {
	select {
	case <-c.ended:
		return true
	default:
	}
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return true
	}
	hup := false
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(poll, 0)
		hup = err == nil && n > 0 && poll[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return hup || err != nil
}

// Stderr is standard error of a plugin process. What is written after the answer goes to the server's
// log.
type Stderr struct {
	log func(string, ...any)

	mu       sync.Mutex
	text     []byte
	finished bool
}

// Write implements io.Writer.
func (s *Stderr) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		s.log("%s", bytes.TrimSpace(text))
		return len(text), nil
	}
	s.text = append(s.text, text[:min(len(text), maxStderr-len(s.text))]...)
	return len(text), nil
}

// finish returns the text. What is written later goes to the log.
func (s *Stderr) finish() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.text
	s.text, s.finished = nil, true
	return text
}
