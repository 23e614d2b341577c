// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/drops"
	"github.com/patchbay-net/patchbay/internal/resident"
)

const (
	// longestRequest limits, in bytes, what a client may send.
	longestRequest = 4096

	// patience is how long a client may take to send its request, or to read a line.
	patience = 10 * time.Second
)

// serve answers clients until ctx ends.
func (s *Service) serve(ctx context.Context, wg *sync.WaitGroup) {
	l := resident.PatientListener(s.opts.Listener, func(string, ...any) {}) // a lack of descriptors passes, and clients try again
	stop := context.AfterFunc(ctx, func() { l.Close() })                    //nolint:errcheck // it ends Accept
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
			s.answer(ctx, conn)
		})
	}
}

// answer reads a request and answers it.
func (s *Service) answer(ctx context.Context, conn net.Conn) {
	out := &answer{conn: conn, enc: json.NewEncoder(conn)}
	r, err := request(conn)
	if err != nil {
		out.send(drops.Line{Error: err.Error()}) //nolint:errcheck // the client has gone
		return
	}
	s.mu.Lock()
	former, failed := s.lines.former(r), s.failed
	var f *follower
	if r.Follow {
		f = s.lines.follow(r)
		defer s.leave(f)
	}
	s.mu.Unlock()
	if failed != nil {
		former = append(former, drops.Line{Error: failed.Error()})
	}
	for _, l := range former {
		if out.send(l) != nil {
			return
		}
	}
	if f == nil {
		s.sum(ctx, out)
		return
	}
	out.follow(ctx, f)
}

// leave removes a follower.
func (s *Service) leave(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lines.followers, f)
}

// sum sends the totals.
func (s *Service) sum(ctx context.Context, out *answer) {
	if err := s.settle(ctx); err != nil {
		out.send(drops.Line{Error: err.Error()}) //nolint:errcheck // it was the last line
		return
	}
	s.mu.Lock()
	totals := s.tally.totals()
	s.mu.Unlock()
	out.send(drops.Line{Totals: totals}) //nolint:errcheck // it was the last line
}

// request reads the line of a client.
func request(conn net.Conn) (r drops.Request, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return r, err
	}
	line, err := bufio.NewReaderSize(conn, longestRequest).ReadSlice('\n')
	if err != nil {
		return r, fmt.Errorf("the request is no line of at most %d bytes: %w", longestRequest, err)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("the request is wrong: %w", err)
	}
	return r, conn.SetReadDeadline(time.Time{})
}

// answer writes lines to a client.
type answer struct {
	conn net.Conn
	enc  *json.Encoder
}

func (a *answer) send(l drops.Line) error {
	if err := a.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	return a.enc.Encode(l)
}

// follow sends new lines until the client goes, or ctx ends.
func (a *answer) follow(ctx context.Context, f *follower) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		a.conn.Read(make([]byte, 1)) //nolint:errcheck // a client sends nothing more, so it has gone
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-gone:
			return
		case l := <-f.lines:
			if a.send(l) != nil {
				return
			}
		}
	}
}
