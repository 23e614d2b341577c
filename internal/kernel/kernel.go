// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Our plugins change the node through package kernel. It has sockets in the host's and the
// container's namespace, the firewall with its single transaction, and the records. Each is
// opened at its first use, and all calls of a session share it.
package kernel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/spaces"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Kernel belongs to one session.
type Kernel struct {
	NFT     *nft.Conn
	Records *record.Dir

	session    *plugin.Session
	host       *nl.Conn
	sandboxes  map[string]*nl.Conn
	marks      map[string]*life.Mark // cache of mark
	collecting bool
	failed     bool           // the transaction of the last flush failed
	repeats    []*repeatedAdd // repeated ADDs
	adding     []*record.Record
	finishing  []*record.Record                  // the end of the session deletes them (Finish)
	detaching  []*plugin.Request                 // calls of Detach that have not returned, one within the other
	all        []*record.Record                  // cache of alsoNaming
	displacing map[displacement]bool             // cache of Displace
	naming     map[*record.Record]map[place]bool // cache of names
	boot       string                            // cache of BootID
	sweeps     bool                              // sweepDead was called
	holding    map[owner.Key][]string            // facts whose elements are queued

	runtimeName once[string]        // see runtime
	containerd  once[*life.Caller]  // see caller
	containers  once[spaces.Finder] // see attached

	judge    life.Judge
	traces   *traces.Node
	settling inventory.Settling
}

type sessionKey struct{}

// Of returns the session's Kernel. The firewall queue is committed when the session is
// flushed, and discarded if the request fails.
func Of(r *plugin.Request) *Kernel { return OfSession(r.Session) }

// OfSession works like Of for a session without a request.
func OfSession(s *plugin.Session) *Kernel {
	return s.Value(sessionKey{}, func() any { return open(s) }).(*Kernel)
}

func open(s *plugin.Session) *Kernel {
	k := &Kernel{
		NFT:       nft.Open(s.Paths.Run),
		Records:   &record.Dir{Dir: claim.Dir{Path: s.Paths.Run, CheckOnce: true}},
		session:   s,
		sandboxes: make(map[string]*nl.Conn),
		marks:     make(map[string]*life.Mark),
		holding:   make(map[owner.Key][]string),

		displacing: make(map[displacement]bool),
		naming:     make(map[*record.Record]map[place]bool),

		judge: spaces.Judge(s.Paths),
	}
	s.OnFlush(k.commit)
	s.OnDiscard(k.discard)
	s.OnClose(k.close)
	return k
}

// close closes the firewall socket last: after elements were deleted, closing waits for the kernel.
func (k *Kernel) close() {
	for _, c := range k.sandboxes {
		c.Close()
	}
	if k.host != nil {
		k.host.Close()
	}
	k.Records.Close() // release the locks before waiting
	k.NFT.Close()     //nolint:errcheck // the queue is committed or discarded by now
}

// Lives reports whether the namespace of a record may still exist. Whoever takes something from another attachment asks
// this.
func (k *Kernel) Lives(rec *record.Record) bool {
	state, _ := k.judge.At(rec.NetNS, rec.NetNSMark)
	return state != life.Dead
}

// Over reports whether an ADD may take what an earlier ADD of the same attachment has left in rec. The runtime says that
// the container is new. So the earlier one is over when its namespace is not at its path, even if a process still holds it.
func (k *Kernel) Over(rec *record.Record) bool {
	state, _ := k.judge.AtPath(rec.NetNS, rec.NetNSMark)
	return state == life.Dead
}

// Traces returns what reads the traces of attachments on this node.
func (k *Kernel) Traces() *traces.Node {
	if k.traces == nil {
		k.traces = &traces.Node{Paths: k.session.Paths, NFT: k.NFT, Records: k.Records, Host: k.Host}
		for _, p := range k.session.Plugins {
			k.traces.Patterns = append(k.traces.Patterns, traces.Patterns(k.session.Paths, p.Files)...)
		}
	}
	return k.traces
}

// Host returns the socket in the namespace of the process.
func (k *Kernel) Host() (*nl.Conn, error) {
	if k.host == nil {
		c, err := nl.Host(k.session.Paths.Proc)
		if err != nil {
			return nil, err
		}
		k.host = c
	}
	return k.host, nil
}

// Sandbox returns the socket in the namespace at path. For an error, netns.Gone reports
// whether the namespace is gone.
func (k *Kernel) Sandbox(path string) (*nl.Conn, error) {
	if c, ok := k.sandboxes[path]; ok {
		return c, nil
	}
	ns, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	c, err := nl.In(ns, k.session.Paths.Proc)
	if err != nil {
		return nil, err
	}
	k.sandboxes[path] = c
	return c, nil
}

func (k *Kernel) env(r *plugin.Request) *netstate.Env {
	return &netstate.Env{
		NFT: k.NFT, Records: k.Records, Warn: func(err error) { Warn(r, err) },
		Conflict: k.displaced, Say: r.Session.Dry, Mended: r.Session.Mended,
		HolderAdded: func(fact string, o owner.Key) { k.holding[o] = append(k.holding[o], fact) },
	}
}

// Env opens both namespaces of a request. If only the sandbox cannot be opened, Env returns the host's side with
// the error.
func (k *Kernel) Env(r *plugin.Request) (*netstate.Env, error) {
	env, err := k.HostEnv(r)
	if err != nil || r.NetNS == "" {
		return env, err
	}
	if env.Sandbox, err = k.Sandbox(r.NetNS); err != nil {
		return env, spec.Errorf(spec.CodeInvalidNetNS, "failed to open netns %q: %w", r.NetNS, err)
	}
	return env, nil
}

// DelEnv works like Env for a DEL. The sandbox is nil if the namespace is missing, not given, or another
// container's by now.
func (k *Kernel) DelEnv(r *plugin.Request) (*netstate.Env, error) {
	if r.NetNS != "" && k.recycled(r) {
		return k.HostEnv(r)
	}
	env, err := k.Env(r)
	if env != nil && netns.Gone(err) {
		return env, nil
	}
	return env, err
}

// recycled works like Recycled for the record of a request's attachment.
func (k *Kernel) recycled(r *plugin.Request) bool {
	rec, err := k.Records.Read(r.Network, r.Owner, r.Plugin.Name)
	return err == nil && k.Recycled(r.NetNS, rec)
}

// Recycled reports whether the namespace at a path is certainly another one than the ADD of rec got: a runtime
// gives a path again, and the kernel a process id. Nothing in such a namespace is the attachment's.
func (k *Kernel) Recycled(path string, rec *record.Record) bool {
	if rec == nil || rec.NetNSMark == nil {
		return false
	}
	state, _ := k.judge.AtPath(path, rec.NetNSMark)
	return state == life.Dead
}

// HostEnv works like Env for a plugin that works only on the host. Without a thread and sockets
// in the container's namespace, such an ADD takes a fifth less time.
func (k *Kernel) HostEnv(r *plugin.Request) (*netstate.Env, error) {
	host, err := k.Host()
	if err != nil {
		return nil, err
	}
	env := k.env(r)
	env.Host = host
	return env, nil
}

// Apply ensures s and pushes each undo on the request's stack. In a dry run it only prints s.
func (k *Kernel) Apply(ctx context.Context, r *plugin.Request, env *netstate.Env, s netstate.State) error {
	if dry := r.Session.Dry; dry != nil {
		for _, o := range s {
			dry(o.String())
		}
		return nil
	}
	a := netstate.Applier{Env: env, Undo: r.Undo}
	if r.Session.Fault != nil { // only tests use the names of steps
		a.Step = r.Step
	}
	return a.Apply(ctx, s)
}

// Record writes a plugin's record before the plugin changes anything. Record pushes an undo that
// removes the record or restores the earlier one. Record also sets the attachment's names, and
// adds what an earlier ADD left (follow).
func (k *Kernel) Record(r *plugin.Request, rec *record.Record) error {
	name(r, rec)
	if args, err := r.CNIArgs(); err == nil {
		rec.Pod = spec.Pod(args)
	}
	if mark := k.mark(r.NetNS); mark != nil { // an IPAM plugin may get any path; a path that is no namespace would later look like a dead one
		rec.NetNS, rec.NetNSMark = r.NetNS, mark
	}
	rec.Runtime = k.runtime()
	if rec.Pod != "" && rec.NetNS != "" {
		rec.Caller = k.caller()
	}
	if r.Session.Dry != nil {
		return nil
	}
	if err := r.Step("record " + rec.Plugin); err != nil {
		return err
	}
	before, err := k.write(r, rec)
	if err != nil {
		return err
	}
	k.adding = append(k.adding, rec)
	k.sweepDead(r, rec)
	r.Undo(func(context.Context) error {
		k.adding = slices.DeleteFunc(k.adding, func(other *record.Record) bool { return other == rec })
		if before != nil {
			return k.Records.Rewrite(before) // the earlier record's objects still exist
		}
		return k.Records.Remove(rec.Network, rec.Owner, rec.Plugin)
	})
	return nil
}

func name(r *plugin.Request, rec *record.Record) {
	rec.Plugin, rec.Owner, rec.Network, rec.ContainerID, rec.IfName = r.Plugin.Name, r.Owner, r.Network, r.ContainerID, r.IfName
}

// Read returns the plugin's record of the attachment. Read returns nil if there is none. If
// the record cannot be read, it warns and returns nil.
func (k *Kernel) Read(r *plugin.Request) *record.Record {
	rec, err := k.Records.Read(r.Network, r.Owner, r.Plugin.Name)
	if err != nil {
		Warn(r, err)
	}
	return rec
}

// mark returns the mark of the namespace at path, with its cookie, or nil if there is no namespace. All
// plugins of a session get the same mark.
func (k *Kernel) mark(path string) *life.Mark {
	if m := k.marks[path]; m != nil {
		return m
	}
	m := life.MarkOf(path, k.BootID(), k.cookie)
	if m != nil {
		k.marks[path] = m
	}
	return m
}

// cookie works like life.CookieOf. It does not call Sandbox, because opening sockets takes longer.
func (k *Kernel) cookie(path string) uint64 {
	if c, ok := k.sandboxes[path]; ok {
		return c.Cookie()
	}
	return life.CookieOf(path)
}

// BootID returns "" if the boot id cannot be read.
func (k *Kernel) BootID() string {
	if k.boot == "" {
		k.boot, _ = clock.BootID(k.session.Paths.Proc)
	}
	return k.boot
}

// Check turns differences between state and kernel into the error of CHECK. The error wraps
// *netstate.Differences, and its details list the firewall's elements. If s has elements, Check
// compares their tables too.
func Check(ctx context.Context, env *netstate.Env, s netstate.State) error {
	diffs, err := append(slices.Clone(s), s.Tables()...).Diff(ctx, env)
	if err != nil {
		return err
	}
	if !diffs.Any() {
		return nil
	}
	return spec.Errorf(spec.CodeInternal, "%w", diffs).WithDetails("%s", strings.Join(diffs.Details(), "; "))
}

// Warn writes one line to the plugin's standard error.
func Warn(r *plugin.Request, err error) {
	fmt.Fprintf(r.Session.Stderr, "patchbay: warning: %s: %v\n", r, err) //nolint:errcheck // a log line
}
