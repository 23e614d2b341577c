// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy is the plugin `policy`. The plugin closes a new pod in those directions in which a
// network policy selects it. `patchbayd node` opens the pod for what its policies allow, as soon as it
// enforces them. If the agent or the API server does not run, the pod stays closed; its node can
// still reach it.
//
//   - What closes a pod is decided by the files that the agent keeps on the node (internal/policy/mirror). An
//     ADD reads one of them. If a file is damaged, the pod is closed.
//   - A closed pod is an element of a set in the table `inet patchbay` (internal/policy/enforce). DEL removes it.
//   - The record of the plugin tells the agent which pod has which addresses on this node, before the
//     API does.
//
// Use it in a chain behind a plugin whose packets pass the host's forward hook: ptp, or bridge with
// br_netfilter. Otherwise ADD fails. Requires Linux 5.10.
package policy

import (
	"context"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	rules "github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	name   = "policy"
	noPrev = "network policies apply to the addresses of a previous plugin: put policy behind the plugin that makes the interface"
)

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:       name,
	Kind:       plugin.Chained,
	About:      "closes a pod that a network policy selects until the node's agent enforces it",
	MinVersion: "0.4.0",
	Conf:       func() any { return new(Conf) },
	NoPrev:     plugin.NoPrev{Add: noPrev, Check: noPrev},

	Reserved: reserved,

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// reserved closes a pod before it has a link. Otherwise the pod's kernel would answer packets until the
// transaction of the ADD. Connections that begin then, as by ping, would go on although the pod is closed.
//
// reserved commits a transaction of its own, without the work that other plugins have queued: if the ADD fails,
// that work must not be done. There is no record yet: DEL and GC find what is closed by the owner.
func reserved(ctx context.Context, r *plugin.Request, ipam *spec.Result) error {
	pod, err := who(r)
	if pod == nil || err != nil {
		return err
	}
	pod.Addrs = addressesOf(ipam)
	*seenBy(r) = seen{}                              // of an ADD that failed
	c, _ := decide(r.Session.Paths, pod, comment(r)) // add warns of the error
	if c.Close == [2]bool{} && !hadFormerLately(r.Session.Paths, c.Addrs) {
		return nil
	}
	fw := nft.Open(r.Session.Paths.Run)
	defer fw.Close() //nolint:errcheck // committed
	c.purge = !mirror.AgentRuns(r.Session.Paths)
	if err := c.closeReused(r, fw); err != nil || c.Close == [2]bool{} {
		return err
	}
	enforce.Close(fw, c.Closure, false)
	if err := fw.Commit(ctx); err != nil {
		return err
	}
	seenBy(r).closed = c.Close
	if !c.purge || !hadFormer(r.Session.Paths, c.Addrs) {
		return nil
	}
	env, err := kernel.Of(r).HostEnv(r)
	if err == nil {
		endNow(r, env, c)
	}
	return err
}

// add returns the previous result unchanged. It writes the record of a pod that is not closed, too.
func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	k := kernel.Of(r)
	pod, err := who(r)
	if err != nil {
		return nil, err
	}
	env, err := k.HostEnv(r)
	if err != nil {
		return nil, err
	}
	if pod == nil {
		return r.Prev(), sends(ctx, r, env)
	}
	bridges, err := judge(r, env, pod)
	if err != nil {
		return nil, err
	}
	pod.Checked, pod.Early = true, mirror.Unknown(r.Session.Paths)
	rec := &record.Record{Policed: pod}
	if err := k.Record(r, rec); err != nil {
		return nil, err
	}
	if err := noFastPath(r, bridges); err != nil { // a fast path may have been made since the first check; an ADD that makes one later sees this record
		return nil, err
	}
	c, err := decide(r.Session.Paths, pod, comment(r))
	if err != nil {
		kernel.Warn(r, err)
	}
	c.purge = !mirror.AgentRuns(r.Session.Paths)
	if err := c.closeReused(r, env.NFT); err != nil {
		return nil, err
	}
	c.former = rec.Policed.Former
	if err := k.Apply(ctx, r, env, netstate.State{c}); err != nil {
		return nil, err
	}
	dropWaiting(r, env, c)
	endFormer(r, env, c)
	return r.Prev(), nil
}

// sends lets a container that no policy can select send only from its own addresses: policies of pods, on this
// node and on others, trust the source of a packet.
func sends(ctx context.Context, r *plugin.Request, env *netstate.Env) error {
	k := kernel.Of(r)
	own := &record.Policed{Name: r.ContainerID, Addrs: addressesOf(r.Prev()), Checked: true}
	if _, _, err := ends(r, env, own); err != nil || own.Link+own.Port == "" || len(own.Addrs) == 0 {
		return err
	}
	rec := &record.Record{Sends: own}
	if err := k.Record(r, rec); err != nil {
		return err
	}
	c := closedBy(&rules.Decision{}, rec.Sends, comment(r))
	c.former = rec.Sends.Former
	return k.Apply(ctx, r, env, netstate.State{c})
}

// check compares the kernel with what the agent's files say now.
func check(ctx context.Context, r *plugin.Request) error {
	pod, err := who(r)
	if pod == nil || err != nil {
		return err
	}
	env, err := kernel.Of(r).HostEnv(r)
	if err != nil {
		return err
	}
	if _, err := judge(r, env, pod); err != nil {
		return err
	}
	if rec := kernel.Of(r).Read(r); rec != nil && rec.Policed != nil {
		pod.Checked, pod.Early = rec.Policed.Checked, rec.Policed.Early
	}
	c, err := decideAgain(r.Session.Paths, pod, comment(r))
	if err != nil {
		kernel.Warn(r, err)
	}
	c.checked = pod.Checked
	return kernel.Check(ctx, env, netstate.State{c})
}

// status reports whether an ADD could close a pod.
func status(_ context.Context, r *plugin.Request) error {
	if err := kernel.Of(r).NFT.Status(); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "network policies cannot be enforced: %w", err)
	}
	return nil
}
