// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

func raw(texts ...string) (out []json.RawMessage) {
	for _, text := range texts {
		out = append(out, json.RawMessage(text))
	}
	return out
}

// tables: every field of every kind of object comes back, in this store and in another one.
func (s *suite) tables() {
	other := s.another()
	comesBack(s, s.s.Networks(), other.Networks(), Network("blue"), func(n *store.Network) { n.MTU = 9000 })
	comesBack(s, s.s.Networks(), other.Networks(), store.Network{Name: "bare"}, func(n *store.Network) { n.Transport = store.Routes })
	comesBack(s, s.s.Nodes(), other.Nodes(), node("n1"), func(n *store.Node) { n.Name = "renamed" })
	comesBack(s, s.s.Blocks(), other.Blocks(), block("blue", "10.1.2.0/24", "n1"), func(b *store.Block) { b.Node = "n2" })
	comesBack(s, s.s.Blocks(), other.Blocks(), block("blue", "::/0", "n1"), func(b *store.Block) { b.Node = "n2" })
	comesBack(s, s.s.Entries(), other.Entries(), endpoint("blue", "n1", "e1"), func(e *store.Entry) { e.Names = nil })
}

func comesBack[T store.Object](s *suite, here, there store.Table[T], object T, change func(*T)) {
	s.Helper()
	_, err := here.Get(s.ctx, object.Key())
	s.is(err, store.ErrNotFound)
	created := create(s, here, object)
	got, err := there.Get(s.ctx, object.Key())
	s.must(err)
	s.same(got, store.Item[T]{Object: object, Revision: created})
	change(&object)
	updated, err := there.Update(s.ctx, object, created)
	s.must(err)
	if updated == created || updated == "" {
		s.Errorf("update %q: revision %q after %q", object.Key(), updated, created)
	}
	got, err = here.Get(s.ctx, object.Key())
	s.must(err)
	s.same(got, store.Item[T]{Object: object, Revision: updated})
}

// is fails unless err wraps want.
func (s *suite) is(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("got the error %v, want one that is: %v", err, want)
	}
}

func (s *suite) same(got, want any) {
	s.Helper()
	if !reflect.DeepEqual(got, want) {
		s.Errorf("got %+v\nwant %+v", got, want)
	}
}

func (s *suite) createOnce() {
	t := s.s.Networks()
	create(s, t, Network("a"))
	_, err := s.another().Networks().Create(s.ctx, Network("a"), nil)
	s.is(err, store.ErrExists)
	if err != nil && !strings.Contains(err.Error(), `network "a"`) {
		s.Errorf("does not say of what: %v", err)
	}
}

func (s *suite) compareAndSwap() {
	t, o := s.s.Networks(), Network("a")
	first := create(s, t, o)
	second, err := t.Update(s.ctx, o, first)
	s.must(err)
	for _, stale := range []store.Revision{first, "", "no revision"} {
		_, err = t.Update(s.ctx, o, stale)
		if err == nil || stale == first && !errors.Is(err, store.ErrConflict) {
			s.Errorf("update at revision %q: %v", stale, err)
		}
	}
	_, err = t.Update(s.ctx, Network("b"), second)
	s.is(err, store.ErrConflict)
	s.must(t.Delete(s.ctx, "a", second))
	_, err = t.Update(s.ctx, o, second)
	s.is(err, store.ErrConflict)
	if again := create(s, t, o); again == first || again == second {
		s.Errorf("revision %q came twice", again)
	}
}

func (s *suite) delete() {
	t, o := s.s.Networks(), Network("a")
	s.must(t.Delete(s.ctx, "a", ""))
	first := create(s, t, o)
	second, err := t.Update(s.ctx, o, first)
	s.must(err)
	s.is(t.Delete(s.ctx, "a", first), store.ErrConflict)
	_, err = t.Get(s.ctx, "a")
	s.must(err)
	s.must(t.Delete(s.ctx, "a", second))
	s.must(t.Delete(s.ctx, "a", second)) // a second deletion is no error
	_, err = t.Get(s.ctx, "a")
	s.is(err, store.ErrNotFound)
	create(s, t, o)
	s.must(t.Delete(s.ctx, "a", ""))
	_, err = t.Get(s.ctx, "a")
	s.is(err, store.ErrNotFound)
}

func (s *suite) list() {
	t := s.s.Blocks()
	var want []string
	for _, network := range []string{"b", "a", "a.b", "a-b", "a0"} { // "/" sorts between . and 0
		for i := range 60 { // together more than a page of etcd
			b := block(network, fmt.Sprintf("10.0.%d.0/24", i), "n")
			create(s, t, b)
			want = append(want, b.Key())
		}
	}
	slices.Sort(want)
	create(s, s.s.Networks(), Network("a")) // of another table
	s.keys(t, "", want)
	only := slices.DeleteFunc(slices.Clone(want), func(k string) bool { return !strings.HasPrefix(k, "a/") })
	s.keys(t, "a/", only)
	s.keys(t, "a/10.0.7.0-24", []string{"a/10.0.7.0-24"})
	s.keys(t, "c/", nil)
}

func (s *suite) keys(t store.Table[store.Block], prefix string, want []string) {
	s.Helper()
	items, revision, err := t.List(s.ctx, prefix)
	s.must(err)
	var got []string
	for _, i := range items {
		got = append(got, i.Object.Key())
	}
	if !slices.Equal(got, want) || revision == "" {
		s.Errorf("list of %q: %q\nwant %q; revision %q", prefix, got, want, revision)
	}
}

// names: no key leaves its table, and no object has the key of another.
func (s *suite) names() {
	create(s, s.s.Nodes(), node("victim"))
	for _, name := range []string{
		"", ".", "..", "../nodes/victim", "a/b", "/a", "a/", "a//b", "a\x00b", "a\nb", "a b", "a%2fb", "a,b", "a~", ".hidden", "-flag",
		"käse", "\xff", strings.Repeat("x", 201),
	} {
		_, err := s.s.Networks().Create(s.ctx, Network(name), nil)
		s.is(err, store.ErrName)
		_, err = s.s.Networks().Update(s.ctx, Network(name), "1")
		s.is(err, store.ErrName)
		_, err = s.s.Networks().Get(s.ctx, name)
		s.is(err, store.ErrName)
		s.is(s.s.Networks().Delete(s.ctx, name, ""), store.ErrName)
		_, err = s.s.Entries().Create(s.ctx, endpoint("n", name, "e"), nil)
		s.is(err, store.ErrName)
	}
	for _, p := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:10.0.0.0/104")} {
		if _, err := s.s.Blocks().Create(s.ctx, store.Block{Network: "n", Prefix: p}, nil); p.IsValid() != (err == nil) {
			s.Errorf("block %v: %v", p, err)
		}
	}
	for _, name := range []string{"a", "A", "0", "_", ":", "a.json", "a_b-c.d:e", "v1", "log", "lock", strings.Repeat("x", 200)} {
		create(s, s.s.Networks(), Network(name))
		_, err := s.s.Networks().Get(s.ctx, name)
		s.must(err)
	}
	if _, err := s.s.Nodes().Get(s.ctx, "victim"); err != nil {
		s.Error(err)
	}
	if items, _, err := s.s.Nodes().List(s.ctx, ""); err != nil || len(items) != 1 {
		s.Errorf("nodes: %v, %v", items, err)
	}
	items, _, err := s.s.Networks().List(s.ctx, "../")
	if err != nil || len(items) != 0 {
		s.Errorf("list of ../: %v, %v", items, err)
	}
}

// unreadable: an object that is damaged or newer hides no other.
func (s *suite) unreadable() {
	t := s.s.Networks()
	create(s, t, Network("a"))
	create(s, t, Network("z"))
	for key, data := range map[string]string{
		"future":   `{"schema":99,"object":{"name":{"first":"x"}}}`,
		"garbage":  `"what is this"`,
		"nothing":  `{}`,
		"impostor": `{"schema":1,"object":{"name":"a"}}`,
		"wrong":    `{"schema":1,"object":{"name":"wrong","subnets":7}}`,
	} {
		s.place.Put(s.T, "networks", key, []byte(data))
		_, err := t.Get(s.ctx, key)
		s.is(err, store.ErrUnreadable)
		items, revision, err := t.List(s.ctx, "")
		s.is(err, store.ErrUnreadable)
		if err != nil && !strings.Contains(err.Error(), key) {
			s.Errorf("does not say which (%s): %v", key, err)
		}
		if len(items) != 2 || revision == "" {
			s.Errorf("beside %s: %v, revision %q", key, items, revision)
		}
		_, err = t.Create(s.ctx, Network(key), nil)
		s.is(err, store.ErrExists)
		s.must(t.Delete(s.ctx, key, ""))
		create(s, t, Network(key))
		s.must(t.Delete(s.ctx, key, ""))
	}
	_, _, err := t.List(s.ctx, "")
	s.must(err)
}
