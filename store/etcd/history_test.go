// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"fmt"
	"testing"
)

// fronted is an etcd, reached directly and by a network that can be cut.
func fronted(t *testing.T) (server *server, between *front, direct, s *Store) {
	t.Helper()
	server = newServer(t)
	between = newFront(t, server.endpoint)
	o := server.options(t)
	direct = open(t, o)
	o.Endpoints = []string{between.addr}
	return server, between, direct, open(t, o)
}

// An etcd that lost its data, and whose revisions have passed those of a watch
// before that could look: what the watch missed it must not miss for good.
func TestAnotherHistory(t *testing.T) {
	t.Parallel()
	for name, watching := range map[string]bool{"a watch that stands": true, "a watch from a revision": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, front, direct, s := fronted(t)
			_, err := s.Networks().Create(t.Context(), network("old"), nil)
			must(t, err)
			_, revision, err := s.Networks().List(t.Context(), "")
			must(t, err)
			var keys <-chan string
			if watching {
				keys = watched(t.Context(), s.Networks(), revision)
				_, err = direct.Networks().Create(t.Context(), network("last"), nil)
				must(t, err)
				want(t, keys, "+last")
			}
			front.cut()
			server.anew()
			for i := range 9 {
				again(t, func() error {
					_, err := direct.Networks().Create(t.Context(), network(fmt.Sprint("n", i)), nil)
					return err
				})
			}
			front.join()
			if !watching {
				keys = watched(t.Context(), s.Networks(), revision)
			}
			want(t, keys, "compacted")
		})
	}
}

// A watch whose connection breaks goes on where it was, in the same history.
func TestConnectionBreaks(t *testing.T) {
	t.Parallel()
	_, front, direct, s := fronted(t)
	_, revision, err := s.Networks().List(t.Context(), "")
	must(t, err)
	keys := watched(t.Context(), s.Networks(), revision)
	for _, name := range []string{"a", "b", "c"} {
		front.cut()
		_, err := direct.Networks().Create(t.Context(), network(name), nil)
		must(t, err)
		front.join()
		want(t, keys, "+"+name)
	}
}
