// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// egress changes the source address of packets that pods of a namespace send out of the node.
// The Namespace's annotation lists the new addresses. An ADD reads the addresses from a file.
// For running pods, the agent changes the elements in the kernel and the records. So a DEL or a
// repair needs no agent.
type egress struct {
	paths  paths.Paths
	spaces namespaces
	wake   chan struct{}
	report func(error)
	log    func(format string, args ...any)
	busy   bool // a pod's record was in use at the last pass
	clean  int  // passes since a namespace wanted an address or a pod had one
}

func newEgress(p paths.Paths, report func(error), log func(string, ...any)) *egress {
	e := &egress{paths: p, wake: make(chan struct{}, 1), report: report, log: log}
	e.spaces = namespaces{changed: func() { resident.Signal(e.wake) }, wanted: map[string]string{}, absent: map[string]bool{}}
	return e
}

// run works until ctx ends. If Options.Egress is off, the agent only undoes the changes of an
// earlier run.
func (e *egress) run(ctx context.Context, a *Agent) {
	if a.opts.Egress {
		e.tend(ctx, a.retry)
		return
	}
	for e.clean < enoughPasses {
		e.report(e.pass(ctx))
		if !clock.Sleep(ctx, resident.Jitter(a.retry)) {
			return
		}
	}
}

// load reads the annotations that the last run saved, so that the agent can start without the API
// server.
func (e *egress) load() error {
	names, err := e.noted()
	for _, name := range names {
		was, readErr := record.EgressOf(e.paths, name)
		if err = errors.Join(err, readErr); was.Wanted != "" {
			e.spaces.wanted[name] = was.Wanted
		}
	}
	return err
}

// noted returns the namespaces that have a file.
func (e *egress) noted() (names []string, err error) {
	entries, err := os.ReadDir(record.EgressDir(e.paths))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, f := range entries {
		if !durable.IsTemp(f.Name()) {
			names = append(names, f.Name())
		}
	}
	return names, err
}

// tend applies the annotations until ctx ends: when an annotation changes, when an address of the
// node changes, and regularly. It must look regularly, because an ADD may have read the file just
// before a change. If a pod's record was in use, it tries again after about retry.
func (e *egress) tend(ctx context.Context, retry time.Duration) {
	moved, stop := make(chan netlink.AddrUpdate), make(chan struct{})
	defer close(stop)
	unwatched := netlink.AddrSubscribe(moved, stop)
	tick := time.NewTicker(reconcileEvery)
	defer tick.Stop()
	for {
		e.report(errors.Join(e.pass(ctx), unwatched))
		var again <-chan time.Time
		if e.busy {
			again = time.After(resident.Jitter(retry))
		}
		select {
		case <-again:
		case <-ctx.Done():
			go func() {
				for range moved { // so that the library's goroutine can end
				}
			}()
			return
		case <-e.wake:
		case <-tick.C:
		case _, ok := <-moved:
			if !ok {
				moved, unwatched = nil, errors.New("the kernel does not tell changes of addresses any more: they count within a minute; restart the agent")
			}
		}
	}
}

// pass makes files, records and the kernel match the annotations, and returns what is wrong.
func (e *egress) pass(ctx context.Context) error {
	wanted, absent := e.spaces.now()
	if e.busy = false; e.clean >= enoughPasses && len(wanted) == 0 {
		return nil
	}
	own, err := addresses(e.paths.Proc)
	if err != nil {
		return err // without them no choice is safe
	}
	pods, err := e.pods()
	errs := []error{err}
	uses := map[string][]netip.Addr{}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if absent[name] && pods[name] == nil && err == nil {
			e.spaces.set(name, "")
			delete(wanted, name)
			continue
		}
		use, wrong := e.choose(name, wanted[name], own, len(pods[name]) > 0)
		uses[name] = use
		errs = append(errs, wrong)
	}
	errs = append(errs, e.dropFiles(uses))
	remaining, wrong := e.apply(ctx, pods, uses)
	err = errors.Join(append(errs, wrong...)...)
	if e.clean++; err != nil || remaining > 0 || len(wanted) > 0 {
		e.clean = 0
	}
	return err
}

// enoughPasses is the number of passes without work after which pass no longer reads the pods'
// records. One pass is not enough, because an ADD may have read a file just before its removal, and
// writes its record later.
const enoughPasses = 2

// addresses returns the addresses of the node's interfaces that can be the source of packets to
// other hosts.
func addresses(proc string) (list []netip.Addr, err error) {
	host, err := nl.Host(proc)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	all, err := host.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list this node's addresses: %w", err)
	}
	for i := range all {
		if a := nl.AddrOf(all[i].IP); a.IsGlobalUnicast() {
			list = append(list, a)
		}
	}
	return list, nil
}

// choose returns the addresses of one namespace and saves them in its file: for each family, the
// first listed address that this node has. If the annotation is wrong, the addresses do not change.
func (e *egress) choose(name, wanted string, own []netip.Addr, concerned bool) (use []netip.Addr, err error) {
	list, err := parseEgress(wanted)
	if err != nil {
		was, _ := record.EgressOf(e.paths, name) // empty, if the file cannot be read
		return was.Use, fmt.Errorf("namespace %s: annotation %s: %w: its pods leave with %v as before; correct the annotation", name, EgressAnnotation, err, was.Use)
	}
	for _, v4 := range []bool{true, false} {
		family := slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a.Is4() != v4 })
		i := slices.IndexFunc(family, func(a netip.Addr) bool { return slices.Contains(own, a) })
		switch {
		case i >= 0:
			use = append(use, family[i])
		case len(family) > 0 && concerned:
			err = errors.Join(err, fmt.Errorf("namespace %s: this node has none of the addresses %v of annotation %s: its pods here leave with the node's usual address; "+
				"give an interface of this node one of them", name, family, EgressAnnotation))
		}
	}
	return use, errors.Join(err, e.note(name, record.Egress{Schema: record.EgressSchema, Wanted: wanted, Use: use}))
}

// parseEgress parses an annotation.
func parseEgress(text string) (list []netip.Addr, err error) {
	for _, part := range strings.Split(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil || !prefix.IsHost(a) {
			return nil, fmt.Errorf("%.100q is not the address of a host: want a list such as 192.0.2.10, 2001:db8::10", strings.TrimSpace(part))
		}
		list = append(list, a)
	}
	return list, nil
}

// note writes a namespace's file if it differs.
func (e *egress) note(name string, to record.Egress) error {
	data, err := json.Marshal(to)
	if err != nil {
		return err
	}
	path := filepath.Join(record.EgressDir(e.paths), name)
	if have, err := durable.Read(path); err == nil && string(have) == string(data) {
		return nil
	}
	if err := durable.MakeDir(e.paths.State, "node", "egress"); err != nil {
		return err
	}
	e.log("egress: pods of namespace %s leave with %v", name, to.Use)
	return durable.WriteDurable(path, data, 0o600)
}

// dropFiles removes the files of namespaces without an annotation.
func (e *egress) dropFiles(wanted map[string][]netip.Addr) error {
	names, err := e.noted()
	errs := []error{err}
	for _, name := range names {
		if _, stays := wanted[name]; !stays {
			e.log("egress: pods of namespace %s leave with the node's usual address", name)
			errs = append(errs, durable.Remove(filepath.Join(record.EgressDir(e.paths), name)))
		}
	}
	return errors.Join(errs...)
}
