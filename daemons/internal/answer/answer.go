// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package answer answers clients of a Unix socket (internal/sight): each sends a request as a line of JSON, and gets lines
// of JSON. A client that reads slowly holds up nobody: what does not fit into its queue is counted.
package answer

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/resident"
)

const (
	// longestRequest limits, in bytes, what a client may send.
	longestRequest = 4096

	// patience is how long a client may take to send its request, or to read a line.
	patience = 10 * time.Second
)

// Clients accepts clients until ctx ends, and closes l then. It calls each for every client, in a goroutine of wg.
func Clients(ctx context.Context, wg *sync.WaitGroup, l net.Listener, each func(*Client)) {
	l = resident.PatientListener(l, func(string, ...any) {}) // a lack of descriptors passes, and clients try again
	stop := context.AfterFunc(ctx, func() { l.Close() })     //nolint:errcheck // it ends Accept
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			stop := context.AfterFunc(ctx, func() { conn.Close() }) //nolint:errcheck // it ends the answer
			defer stop()
			defer conn.Close() //nolint:errcheck // the client sees what it has
			each(&Client{conn: conn, enc: json.NewEncoder(conn)})
		})
	}
}

// Client is one client. Only one goroutine may use it.
type Client struct {
	conn net.Conn
	enc  *json.Encoder
}

// Request reads the client's request.
func (c *Client) Request(into any) error {
	if err := c.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(c.conn, longestRequest).ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("the request is no line of at most %d bytes: %w", longestRequest, err)
	}
	if err := json.Unmarshal(line, into); err != nil {
		return fmt.Errorf("the request is wrong: %w", err)
	}
	return c.conn.SetReadDeadline(time.Time{})
}

// Send sends a line. It fails if the client has gone, or does not read.
func (c *Client) Send(line any) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	return c.enc.Encode(line)
}

// Follow sends what comes into a queue until the client goes, the queue is closed, or ctx ends.
func Follow[L any](ctx context.Context, c *Client, q *Queue[L]) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		c.conn.Read(make([]byte, 1)) //nolint:errcheck // a client sends nothing more, so it has gone
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case l, ok := <-q.lines:
			if !ok || c.Send(l) != nil {
				return
			}
		}
	}
}

// Pending is how many lines wait for one client.
const Pending = 1024

// Queue has the lines that wait for one client. One goroutine at a time may call Give and Close.
type Queue[L any] struct {
	lines  chan L
	gap    func(missed uint64) L
	missed uint64
}

// NewQueue makes a queue. gap returns the line that says how many lines are missing.
func NewQueue[L any](gap func(missed uint64) L) *Queue[L] {
	return &Queue[L]{lines: make(chan L, Pending), gap: gap}
}

// Give passes a line on, or counts it and returns false. It never waits.
func (q *Queue[L]) Give(line L) bool {
	if q.missed > 0 {
		select {
		case q.lines <- q.gap(q.missed):
			q.missed = 0
		default:
		}
	}
	select {
	case q.lines <- line:
		return true
	default:
		q.missed++
		return false
	}
}

// Close says that no more lines come. Those in the queue are still sent.
func (q *Queue[L]) Close() { close(q.lines) }
