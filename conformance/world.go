// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
	"github.com/patchbay-net/patchbay/test/nettest"
	"github.com/patchbay-net/patchbay/test/nettest/leak"
)

// Network is the name of the network that the scripts use.
const Network = "conformance"

type worldKey struct{}

// world is the state of one script. It has two attachments, each in a new namespace.
type world struct {
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
	Attachment
	prev   *spec.Result
	second bool
	gone   bool       // the namespace was deleted
	inside leak.State // state of the namespace before the plugin ran
}

// newWorld makes the namespaces. What Prepare makes belongs to the state at the start.
func newWorld(t *testing.T, s *Suite, version string) *world {
	s.Subject.need(t)
	s.Subject.host(t)
	w := &world{t: t, suite: s, version: version, places: map[string]*place{}}
	for i, name := range []string{"first", "second"} {
		id := "pbt" + strings.ToLower(rand.Text()[:12])
		p := &place{second: i == 1}
		p.Attachment = Attachment{ContainerID: id, NetNS: nettest.NewNS(t, id), IfName: cmp.Or(s.Subject.IfName, "eth0")}
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

func (w *world) prepare(p *place, number int) {
	s := w.suite
	switch {
	case s.Prepare != nil:
		p.prev = s.Prepare(w.t, &p.Attachment)
	case s.Subject.Prev != nil:
		p.prev = veth(w.t, &p.Attachment, s.Subject.Prev, number)
	}
}

// place returns the attachment that a command names. The default is the first.
func (w *world) place(name string) (*place, error) {
	p, ok := w.places[cmp.Or(name, "first")]
	if !ok {
		return nil, fmt.Errorf("no attachment %q", name)
	}
	return p, nil
}

// settleTime is how long the suite waits after a call until the kernel has finished, for
// example deleted a namespace with its devices. It is long because many namespaces may end at
// the same time.
var settleTime = 30 * time.Second

// settle calls left again until nothing but files is left, or until the time is over. It does
// not wait for files, because they do not disappear by themselves.
func (w *world) settle() (leak.State, error) {
	for end := time.Now().Add(settleTime); ; time.Sleep(10 * time.Millisecond) {
		left, err := w.left()
		if err != nil || len(left) == len(left.Of("file")) || time.Now().After(end) {
			return left, err
		}
	}
}

// close deletes the namespaces. nettest does this only at the end of the test, which is late
// for a test that makes many worlds.
func (w *world) close() {
	for _, p := range w.places {
		if err := netns.Delete(p.NetNS); err != nil {
			w.t.Error(err)
		}
	}
}

// left lists what the host and the namespaces have now and did not have at the start. It omits
// what remains with the network by design.
func (w *world) left() (leak.State, error) {
	now, err := leak.Take()
	if err != nil {
		return nil, err
	}
	out := now.Beyond(w.before).Without(leak.Standing).Without(w.suite.Subject.leaves)
	for name, p := range w.places {
		if p.gone {
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

// kernels reports whether the kernel made the object by itself: the addresses of a loopback
// interface that was up once, or the rule for all VRFs.
func kernels(line string) bool {
	return line == "address device lo 127.0.0.1/8" || line == "address device lo ::1/128" ||
		strings.HasPrefix(line, "rule ip rule 1000: from all to all table 0")
}
