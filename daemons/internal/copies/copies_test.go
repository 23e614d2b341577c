// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package copies

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/resident"
)

type kind int

func (k kind) String() string { return [...]string{"apples", "pears"}[k] }

// basket keeps objects "NAME VALUE" of each kind. A value "same" is no change.
type basket struct {
	*Copies[kind]
	mu      sync.Mutex
	changed chan struct{}
	have    [2]map[string]string
}

var errNameless = errors.New("it has no name")

func newBasket() *basket {
	b := &basket{changed: make(chan struct{}, 1), have: [2]map[string]string{{}, {}}}
	b.Copies = New[kind](2, Single[kind, string, string]{
		Name: func(namespace, name string) string { return namespace + "/" + name },
		Read: func(_ kind, object []byte) (name, value string, err error) {
			name, value, ok := strings.Cut(string(object), " ")
			if !ok {
				err = errNameless
			}
			return "x/" + name, value, err
		},
		Put: func(k kind, name, value string) bool {
			changed := b.have[k][name] != value
			b.have[k][name] = value
			return changed
		},
		Remove: func(k kind, name string) bool {
			_, had := b.have[k][name]
			delete(b.have[k], name)
			return had
		},
		Names: func(k kind) (list []string) {
			for name := range b.have[k] {
				list = append(list, name)
			}
			return list
		},
	}.Reader(), &b.mu, func() { resident.Signal(b.changed) })
	return b
}

// list yields objects, and an error at "!".
func list(objects ...string) func(func([]byte, error) bool) {
	return func(yield func([]byte, error) bool) {
		for _, o := range objects {
			var err error
			if o == "!" {
				err = errors.New("the connection ends")
			}
			if !yield([]byte(o), err) {
				return
			}
		}
	}
}

// What counts gives a signal, and what cannot be read changes nothing.
func TestCopies(t *testing.T) {
	b := newBasket()
	for _, step := range []struct {
		about  string
		do     func() error
		fails  string
		signal bool
		want   string // of the apples
	}{
		{"a first list", func() error { return b.Replace(0, list("a 1", "b 1")) }, "", true, "map[x/a:1 x/b:1]"},
		{"an object", func() error { return b.Set(0, []byte("c 1")) }, "", true, "map[x/a:1 x/b:1 x/c:1]"},
		{"the same object", func() error { return b.Set(0, []byte("c 1")) }, "", false, "map[x/a:1 x/b:1 x/c:1]"},
		{"no name", func() error { return b.Set(0, []byte("c")) }, "read one of the apples: it has no name", false, "map[x/a:1 x/b:1 x/c:1]"},
		{"deleted", func() error { b.Delete(0, "x", "c"); return nil }, "", true, "map[x/a:1 x/b:1]"},
		{"deleted twice", func() error { b.Delete(0, "x", "c"); return nil }, "", false, "map[x/a:1 x/b:1]"},
		{"a broken list", func() error { return b.Replace(0, list("d 1", "!", "e 1")) }, "replace the apples: read the list of all, after 1: the connection ends", false, "map[x/a:1 x/b:1]"},
		{"a list with a nameless object", func() error { return b.Replace(0, list("d 1", "e 1", "f")) }, "replace the apples: read the list of all, after 2: it has no name", false, "map[x/a:1 x/b:1]"},
		{"the same list", func() error { return b.Replace(0, list("b 1", "a 1")) }, "", false, "map[x/a:1 x/b:1]"},
		{"another list", func() error { return b.Replace(0, list("b 2", "b 3")) }, "", true, "map[x/b:3]"},
		{"the first list of another kind, which has none", func() error { return b.Replace(1, list()) }, "", true, "map[x/b:3]"},
		{"woken", func() error { b.Wake(); return nil }, "", true, "map[x/b:3]"},
	} {
		err := step.do()
		if got := fmt.Sprint(err); got != step.fails && (step.fails != "" || err != nil) {
			t.Errorf("%s: %s, want %s", step.about, got, step.fails)
		}
		if got := len(b.changed) > 0; got != step.signal {
			t.Errorf("%s: a signal: %v", step.about, got)
		}
		if len(b.changed) > 0 {
			<-b.changed
		}
		if got := fmt.Sprint(maps.Clone(b.have[0])); got != step.want {
			t.Errorf("%s: %s, want %s", step.about, got, step.want)
		}
	}
	if !b.Complete() || len(b.Losses()) > 0 {
		t.Errorf("complete: %v; losses %v", b.Complete(), b.Losses())
	}
}

// A kind is lost until it is listed, and from an error until it is followed again. The time is that of the first error.
func TestLosses(t *testing.T) {
	b := newBasket()
	if b.Complete() || len(b.Losses()) != 2 || b.Listed(0) {
		t.Errorf("before the lists: %v", b.Losses())
	}
	if b.Report(0, nil); len(b.Losses()) != 2 {
		t.Error("a watch without a list counts")
	}
	if err := b.Replace(0, list()); err != nil || !b.Listed(0) || b.Complete() || len(b.Losses()) != 1 {
		t.Errorf("one list: %v, %v", err, b.Losses())
	}
	b.Report(0, errors.New("first"))
	since := b.Losses()[0].Since
	b.Report(0, errors.New("second"))
	if l := b.Losses()[0]; l.Since != since || l.Err.Error() != "second" || l.Kind.String() != "apples" {
		t.Errorf("lost: %v", l)
	}
	if b.Report(0, nil); len(b.Losses()) != 1 {
		t.Errorf("followed again: %v", b.Losses())
	}
}
