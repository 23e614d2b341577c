// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"io"
	"net"
	"sync"
	"testing"
)

// front is a proxy that plays the network between a host and an etcd.
type front struct {
	addr, behind string

	mu    sync.Mutex
	away  bool
	conns []net.Conn
}

func newFront(t testing.TB, behind string) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f := &front{addr: l.Addr().String(), behind: behind}
	t.Cleanup(func() {
		_ = l.Close()
		f.cut()
	})
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			f.pass(in)
		}
	}()
	return f
}

// pass connects to the etcd, unless it is cut off.
func (f *front) pass(in net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out, err := net.Dial("tcp", f.behind)
	if err != nil || f.away {
		_ = in.Close()
		return
	}
	f.conns = append(f.conns, in, out)
	for _, ends := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() {
			_, _ = io.Copy(ends[0], ends[1])
			_ = ends[0].Close()
			_ = ends[1].Close()
		}()
	}
}

// cut ends all connections, and lets none pass until join.
func (f *front) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = true
	for _, c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}

func (f *front) join() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = false
}
