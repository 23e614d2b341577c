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
	t       tester
	suite   *Suite
	version string
	places  map[string]*place
	before  snapshot // host and files when the script began
	err     error    // of the last call, if it failed
	broken  bool     // the script used the command break
	stub    *stub    // the IPAM plugin that the script put in the place of the subject's
	diary   diary

	neighbours *neighbours // after the command of this name
	own        leak.State  // of the host, after the command of this name
}

// place is an attachment and what existed before the plugin ran.
type place struct {
	Container
	prev    *spec.Result
	second  bool
	deleted bool     // the namespace was deleted
	inside  snapshot // the namespace before the plugin ran
}

// World makes the two attachments of a script. It uses the newest version of the specification that the subject supports.
func (s Suite) World(t *testing.T) *World { return newWorld(goTest{t}, &s, s.Subject.newest()) }

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

// callFirst calls the plugin for the first attachment, with a time limit.
func (w *World) callFirst(verb spec.Verb) ([]byte, error) {
	return w.runFor(w.places["first"], &request{verb: verb})
}

// Attachment returns the first attachment.
func (w *World) Attachment() *Container { return &w.places["first"].Container }

// DeleteNetNS deletes the namespace of the first attachment, as "netns delete" does in a script.
func (w *World) DeleteNetNS() error { return w.deleteNetNS(w.places["first"]) }

func (w *World) deleteNetNS(p *place) error {
	w.diary.did("ip netns delete %s", p.ContainerID)
	p.deleted = true
	return netns.Delete(p.NetNS)
}

// recycle deletes the namespace of the first attachment, and gives its path to the namespace of the second.
func (w *World) recycle() error {
	first, second := w.places["first"], w.places["second"]
	if err := w.deleteNetNS(first); err != nil {
		return err
	}
	w.diary.did("touch %s; mount --bind %s %s", first.NetNS, second.NetNS, first.NetNS)
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
func newWorld(t tester, s *Suite, version string) *World {
	s.Subject.need(t)
	w := &World{t: t, suite: s, version: version, places: map[string]*place{}}
	t.begins(w)
	w.host(t)
	for i, name := range []string{"first", "second"} {
		id := "pbt" + strings.ToLower(rand.Text()[:12])
		p := &place{second: i == 1}
		p.Container = Container{ContainerID: id, NetNS: nettest.NewNS(t, id), IfName: cmp.Or(s.Subject.IfName, "eth0")}
		w.diary.did("ip netns add %s", id)
		w.prepare(p, i)
		inside, err := stateIn(p.NetNS)
		if err != nil {
			t.Fatal(err)
		}
		p.inside = inside
		w.places[name] = p
	}
	if err := w.begin(); err != nil {
		t.Fatal(err)
	}
	return w
}

// begin stores the state of the host. What exists now is not left by the plugin.
func (w *World) begin() (err error) {
	w.before, err = w.readState()
	return err
}

// snapshot is what a namespace has.
type snapshot struct {
	objects    leak.State
	attributes leak.Attributes
}

// observe makes a snapshot of the calling thread's namespace, and of the files below dirs.
func observe(dirs ...string) (s snapshot, err error) {
	if s.objects, err = leak.Take(dirs...); err != nil {
		return s, err
	}
	s.attributes, err = leak.TakeAttributes()
	return s, err
}

// beyond lists the objects that s has and before has not, and the attributes that have another value.
func (s snapshot) beyond(before snapshot) leak.State {
	return append(s.objects.Beyond(before.objects), s.attributes.Changed(before.attributes)...)
}

// readState reads the state of the host, and the files in which the plugin may keep state.
func (w *World) readState() (snapshot, error) {
	dirs := w.suite.dirs
	if dirs == nil {
		dirs = leak.Dirs()
	}
	return observe(append(dirs[:len(dirs):len(dirs)], w.suite.Subject.State...)...)
}

func (w *World) prepare(p *place, number int) {
	s := w.suite
	switch {
	case s.Prepare != nil:
		p.prev = s.Prepare(w.t.(goTest).T, &p.Container)
	case s.Subject.Prev != nil:
		p.prev = w.veth(&p.Container, s.Subject.Prev, number)
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

// settle calls leftovers until it returns nothing that the kernel may still delete, or until settleTime is over.
func (w *World) settle() (leak.State, error) {
	for end := time.Now().Add(cmp.Or(w.suite.settle, settleTime)); ; time.Sleep(10 * time.Millisecond) {
		leftovers, err := w.leftovers()
		if err != nil || len(leftovers.Without(lasting)) == 0 || time.Now().After(end) {
			return leftovers, err
		}
	}
}

// sandbox is between the attachment's name and the object, in a line of something that is in a container.
const sandbox = " sandbox: "

func lasting(line string) bool {
	if _, object, ok := strings.Cut(line, sandbox); ok {
		line = object
	}
	return leak.Lasting(line)
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
	now, err := w.readState()
	if err != nil {
		return nil, err
	}
	out := now.beyond(w.before).Without(leak.Standing).Without(w.suite.Subject.leaves)
	for name, p := range w.places {
		if p.deleted {
			continue
		}
		inside, err := stateIn(p.NetNS)
		if err != nil {
			return nil, err
		}
		for _, line := range inside.beyond(p.inside).Without(kernels) {
			out = append(out, name+sandbox+line)
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
