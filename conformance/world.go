// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// Network is the name of the network that the scripts use.
const Network = "conformance"

type worldKey struct{}

// World is the state of one script: two attachments, each in a new namespace. A Go test can do
// with its methods what a script does with commands.
type World struct {
	t       *testing.T
	suite   *Suite
	version string
	places  map[string]*place
	before  leak.State  // state of host and files when the script began
	err     *spec.Error // error of the last call, if it failed
	broken  bool        // the script used the command break
}

// place is an attachment and what existed before the plugin ran.
type place struct {
	Container
	prev    *spec.Result
	second  bool
	deleted bool       // the namespace was deleted
	inside  leak.State // state of the namespace before the plugin ran
}

// World makes the two attachments of a script. It uses the newest version of the specification.
func (s Suite) World(t *testing.T) *World { return newWorld(t, &s, spec.Current) }

// Call calls the plugin as "cni VERB" does in a script, with the words that follow the verb there, such as
// "at=second". Without words it calls the plugin for the first attachment.
func (w *World) Call(ctx context.Context, verb spec.Verb, words ...string) ([]byte, error) {
	r, err := parseRequest(append([]string{string(verb)}, words...))
	if err != nil {
		return nil, err
	}
	p, err := w.place(r.get("at", ""))
	if err != nil {
		return nil, err
	}
	return w.run(ctx, p, r)
}

// Attachment returns the first attachment.
func (w *World) Attachment() *Container { return &w.places["first"].Container }

// DeleteNetNS deletes the namespace of the first attachment, as "netns delete" does in a script.
func (w *World) DeleteNetNS() error { return w.places["first"].deleteNetNS() }

func (p *place) deleteNetNS() error {
	p.deleted = true
	return netns.Delete(p.NetNS)
}

// Recycle deletes the namespace of the first attachment, and gives its path to the namespace of the second.
func (w *World) Recycle() error {
	first, second := w.places["first"], w.places["second"]
	if err := first.deleteNetNS(); err != nil {
		return err
	}
	if err := os.WriteFile(first.NetNS, nil, 0o600); err != nil {
		return err
	}
	return unix.Mount(second.NetNS, first.NetNS, "none", unix.MS_BIND, "")
}

// Left lists the objects that are on the node now and were not there at the start, one per
// line. The script command "clean" prints the same list.
func (w *World) Left() string {
	w.t.Helper()
	leftovers, err := w.settle()
	if err != nil {
		w.t.Fatal(err)
	}
	if len(leftovers) == 0 {
		return ""
	}
	return leftovers.String()
}

// newWorld makes the namespaces. Everything that Prepare makes counts as being there at the start.
func newWorld(t *testing.T, s *Suite, version string) *World {
	s.Subject.need(t)
	s.Subject.host(t)
	w := &World{t: t, suite: s, version: version, places: map[string]*place{}}
	for i, name := range []string{"first", "second"} {
		id := "pbt" + strings.ToLower(rand.Text()[:12])
		p := &place{second: i == 1}
		p.Container = Container{ContainerID: id, NetNS: nettest.NewNS(t, id), IfName: cmp.Or(s.Subject.IfName, "eth0")}
		w.prepare(p, i)
		inside, err := stateIn(p.NetNS)
		if err != nil {
			t.Fatal(err)
		}
		p.inside = inside
		w.places[name] = p
	}
	w.before = leak.Must(t)
	return w
}

func (w *World) prepare(p *place, number int) {
	s := w.suite
	switch {
	case s.Prepare != nil:
		p.prev = s.Prepare(w.t, &p.Container)
	case s.Subject.Prev != nil:
		p.prev = veth(w.t, &p.Container, s.Subject.Prev, number)
	}
}

// place returns the attachment that a command names. If the command names none, it is the first.
func (w *World) place(name string) (*place, error) {
	p, ok := w.places[cmp.Or(name, "first")]
	if !ok {
		return nil, fmt.Errorf("no attachment %q", name)
	}
	return p, nil
}

// settleTime is how long the suite waits after a call until the kernel has finished, for example
// until it has deleted a namespace with its devices. settleTime is long, because many namespaces
// may end at the same time.
var settleTime = 30 * time.Second

// settle calls leftovers until it returns nothing but files, or until settleTime is over. It does not
// wait for files, because the kernel does not delete them.
func (w *World) settle() (leak.State, error) {
	for end := time.Now().Add(settleTime); ; time.Sleep(10 * time.Millisecond) {
		leftovers, err := w.leftovers()
		if err != nil || len(leftovers) == len(leftovers.Of("file")) || time.Now().After(end) {
			return leftovers, err
		}
	}
}

// Close deletes the namespaces. If a test does not call Close, the namespaces stay until the test
// ends. Then a test that makes many worlds has many namespaces.
func (w *World) Close() {
	for _, p := range w.places {
		if p.deleted {
			continue
		}
		if err := netns.Delete(p.NetNS); err != nil {
			w.t.Error(err)
		}
	}
}

// leftovers lists what the host and the namespaces have now and did not have at the start. It omits
// what remains with the network by design.
func (w *World) leftovers() (leak.State, error) {
	now, err := leak.Take()
	if err != nil {
		return nil, err
	}
	out := now.Beyond(w.before).Without(leak.Standing).Without(w.suite.Subject.leaves)
	for name, p := range w.places {
		if p.deleted {
			continue
		}
		inside, err := stateIn(p.NetNS)
		if err != nil {
			return nil, err
		}
		for _, line := range inside.Beyond(p.inside).Without(kernels) {
			out = append(out, name+" sandbox: "+line)
		}
	}
	return out, nil
}

// kernels reports whether the kernel made the object of this line by itself: the addresses of a
// loopback interface that was up once, or the rule for all VRFs.
func kernels(line string) bool {
	return line == "address device lo 127.0.0.1/8" || line == "address device lo ::1/128" ||
		strings.HasPrefix(line, "rule ip rule 1000: from all to all table 0")
}
