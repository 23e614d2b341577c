// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// These are the largest numbers of attachments that one sweep looks at and removes. Each pod causes
// an ADD and a DEL, and each of them runs a sweep. So the sweeps look at more attachments than are
// added, and reach all of them in time. Looking at one attachment takes 15 µs.
const (
	sweepReads   = 3
	sweepRemoves = 2
)

// sweepGrace is the least age of a record that a sweep removes. It equals gc's default.
const sweepGrace = time.Minute

// sweepDead registers a sweep, which runs after a call for a pod. A runtime that crashed never
// calls the DEL of some pods, and containerd calls no GC. The sweep removes only attachments of
// the same runtime: pods on the same network whose namespace is in the same directory.
func (k *Kernel) sweepDead(r *plugin.Request, rec *record.Record) {
	if k.sweeps || r.Plugin.Kind != plugin.Interface || rec.Pod == "" || rec.NetNS == "" {
		return
	}
	k.sweeps = true
	sw := &deadSweep{session: k.session, network: rec.Network, own: rec.Owner, dir: filepath.Dir(rec.NetNS), judge: k.judge}
	r.Session.OnDone(sw.find)
}

// deadSweep is a sweep for one call.
type deadSweep struct {
	session *plugin.Session
	network string
	own     owner.Key // owner of the call's attachment
	dir     string    // directory of the runtime's namespaces
	judge   life.Judge
}

// find finds attachments that may be dead. In most calls there is none.
func (w *deadSweep) find() (work func(context.Context)) {
	suspects, err := record.New(w.session.Paths.Run).Suspects(w.network, w.dir, sweepReads, w.isForgotten)
	w.warn(err)
	suspects = slices.DeleteFunc(suspects, func(o owner.Key) bool { return o == w.own })
	if len(suspects) == 0 {
		return nil
	}
	return func(ctx context.Context) { w.removeSome(ctx, suspects) }
}

// isForgotten judges an attachment whose namespace exists. It reports whether containerd may have
// forgotten the sandbox. named says whether the record names the containerd that called the ADD.
func (w *deadSweep) isForgotten(at spec.AttachmentKey, named bool) (suspect bool) {
	w.warn(w.dropEmptyResult(at))
	return named && w.judge.Unknown(at.ContainerID)
}

// dropEmptyResult removes the cached result of an attachment if the file is empty. A containerd
// that is killed while libcni writes the file leaves it so, and then libcni before 1.3.1 calls no
// DEL: the kubelet tries for ever to stop the sandbox (containerd#8197). Without the file, DEL works.
func (w *deadSweep) dropEmptyResult(at spec.AttachmentKey) error {
	path := results.Path(w.session.Paths.CNI, w.network, at.ContainerID, at.IfName)
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Size > 0 || time.Since(time.Unix(st.Mtim.Unix())) < sweepGrace {
		return nil
	}
	return durable.Remove(path)
}

func (w *deadSweep) removeSome(ctx context.Context, suspects []owner.Key) {
	for removed := 0; len(suspects) > 0 && removed < sweepRemoves && ctx.Err() == nil; suspects = suspects[1:] {
		done, err := w.remove(ctx, suspects[0])
		w.warn(err)
		if done {
			removed++
		}
	}
}

func (w *deadSweep) warn(err error) {
	if err != nil {
		fmt.Fprintf(w.session.Stderr, "patchbay: warning: sweep of network %s: %v\n", w.network, err) //nolint:errcheck // a log line
	}
}

// remove removes an attachment if it is dead. Like gc, it claims the attachment and calls the DEL
// of each plugin that has a record.
func (w *deadSweep) remove(ctx context.Context, o owner.Key) (removed bool, err error) {
	s := w.session.Fork()
	defer s.Close()
	k := OfSession(s)
	done, ok, err := k.Records.TryCollecting()
	if err != nil || !ok {
		return false, err
	}
	defer done()
	var found []record.CurrentRecord
	var inside string
	release, keep, err := k.Records.TrySeize(w.network, o, func(now []record.CurrentRecord) (why string) {
		found = now
		inside, why = w.keep(k, o, now)
		return why
	})
	if err != nil || keep != "" {
		return false, err
	}
	defer release()
	steps := make([]inventory.Step, len(found))
	for i, at := range found {
		call := RecordedDel(at.Plugin, w.network, at.Record.ContainerID, at.Record.IfName)
		call.NetNS = inside
		steps[i] = inventory.Step{Part: PartOf(s, at.Plugin), Do: func() error {
			_, err := s.Invoke(ctx, at.Plugin, call)
			return errors.Join(err, s.Flush(ctx))
		}}
	}
	return true, inventory.Remove(steps...)
}

// keep decides whether an attachment is dead. If it stays, keep returns why. If containerd has forgotten its sandbox,
// the namespace exists, and keep returns its path. The caller has locked the attachment's records.
func (w *deadSweep) keep(k *Kernel, o owner.Key, now []record.CurrentRecord) (forgotten, why string) {
	if len(now) == 0 || len(record.OfDrivers(w.session.Paths.State).Current(w.network, o)) > 0 {
		return "", "it is gone, or a driver must be told"
	}
	for _, at := range now {
		if at.Record == nil || k.session.Plugin(at.Plugin) == nil {
			return "", "a record cannot be read, or is another program's"
		}
	}
	e := k.evidence(w.network, o, now)
	e.At, e.Forgotten = w.judge.At, w.judge.Forgotten
	v := inventory.Judge(e, inventory.Question{Now: time.Now(), Grace: sweepGrace, OnlyOwn: true, Own: w.made})
	if v.State == life.Dead {
		return v.Forgotten, ""
	}
	return "", v.Why
}

// made reports whether the runtime of this call made the attachment of a record: it has a pod, and its namespace is in the
// same directory.
func (w *deadSweep) made(h *claim.Head) bool {
	return h.Pod != "" && h.NetNSMark != nil && filepath.Dir(h.NetNS) == w.dir
}

// PartOf returns what a plugin of this program removes in a DEL. Of another program's plugin it is not known.
func PartOf(s *plugin.Session, name string) inventory.Part {
	p := s.Plugin(name)
	switch {
	case p != nil && p.Kind == plugin.Interface:
		return inventory.Link
	case p != nil && p.Kind == plugin.IPAM:
		return inventory.Address
	}
	return inventory.Rules
}

// RecordedDel builds a DEL for a plugin of this process that has a record of the attachment. Its
// namespace path leads nowhere. The record holds all that DEL needs, so the configuration has
// little but names.
func RecordedDel(pluginType, network, containerID, ifName string) *spec.Call {
	return &spec.Call{
		Verb: spec.Del, ContainerID: containerID, IfName: ifName, Path: []string{"/nonexistent"},
		Config: fmt.Appendf(nil, `{"cniVersion":%q,"name":%q,"type":%q}`, spec.Current, network, pluginType),
	}
}
