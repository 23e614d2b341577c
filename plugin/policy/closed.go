// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	rules "github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
)

// closed is what an ADD ensures: a pod is closed where a policy selects it.
type closed struct {
	enforce.Closure
	pod     string
	checked bool         // the ADD had the sources of the pod checked
	former  []netip.Addr // addresses of an earlier ADD, from which the pod sends no more
	purge   bool         // no agent runs, so what programs have of a former pod is removed
	reused  bool         // an agent runs, and its program may have a former pod with this address
}

// decide reads the decision for a new pod. An error says why the pod is closed although perhaps no policy
// selects it. The pod is also closed if a rule for another pod denies it: that rule has no effect until a
// program has the pod's address.
func decide(p paths.Paths, pod *record.Policed, comment string) (*closed, error) {
	d, err := mirror.Read(p, inMirror(pod))
	c := closedBy(&d, pod, comment)
	for side, against := range d.Against {
		c.Close[side] = c.Close[side] || against
	}
	return c, err
}

// decideAgain decides for a pod that runs.
func decideAgain(p paths.Paths, pod *record.Policed, comment string) (*closed, error) {
	d, err := mirror.ReadAgain(p, inMirror(pod), pod.Early)
	return closedBy(&d, pod, comment), err
}

func inMirror(pod *record.Policed) mirror.Pod {
	return mirror.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

func closedBy(d *rules.Decision, pod *record.Policed, comment string) *closed {
	return &closed{
		Closure: enforce.Closure{Link: pod.Link, Port: pod.Port, Addrs: pod.Addrs, Close: enforce.Closes(d), Comment: comment},
		pod:     pod.Namespace + "/" + pod.Name,
	}
}

// closeReused closes even a pod that no policy selects, if the agent may not know yet that a former pod
// with its address is gone. The program in force, or the one that the agent is making, may have the former
// pod: rules of other pods would treat the new pod as the former one. The first program that has the new
// pod opens it.
func (c *closed) closeReused(r *plugin.Request, fw *nft.Conn) (err error) {
	if c.purge {
		return nil
	}
	if c.reused, err = reused(r, fw, c.Addrs); c.reused {
		c.Close = [2]bool{true, true}
	}
	return err
}

// seen keeps what an ADD learned before the pod had a link (reserved), if one process runs the whole
// chain.
type seen struct {
	closed        [2]bool // by its own transaction
	asked, reused bool    // reused: a program has a former pod with the address; asked: the ADD has asked this, which it does once
}

type seenKey owner.Key

func seenBy(r *plugin.Request) *seen {
	return r.Session.Value(seenKey(r.Owner), func() any { return new(seen) }).(*seen)
}

// reused asks whether a program has a former pod with one of these addresses.
func reused(r *plugin.Request, fw *nft.Conn, addrs []netip.Addr) (_ bool, err error) {
	s := seenBy(r)
	if !s.asked {
		s.reused, err = enforce.Reused(fw, addrs, hadFormerLately(r.Session.Paths, addrs))
		s.asked = err == nil
	}
	return s.reused, err
}

func comment(r *plugin.Request) string {
	return nft.Comment(string(r.Owner), r.Network, r.ContainerID, r.IfName)
}

// String describes what is closed.
func (c *closed) String() string {
	of := fmt.Sprintf("%s of %s", join(c.Addrs), c.pod)
	if c.reused {
		return "host: firewall: no new connection to or from " + of + " until the agent knows that a former pod with this address is gone"
	}
	switch c.Close {
	case [2]bool{true, true}:
		return "host: firewall: no new connection to or from " + of + " until its network policies are enforced"
	case [2]bool{rules.Ingress: true}:
		return "host: firewall: no new connection to " + of + " until its network policies are enforced"
	case [2]bool{rules.Egress: true}:
		return "host: firewall: no new connection from " + of + " until its network policies are enforced"
	}
	return "host: firewall: nothing is closed for " + of + ", because no network policy selects it"
}

func join(list []netip.Addr) string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// Ensure queues what closes the pod. A failed request discards the queue.
func (c *closed) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	enforce.Leave(env.NFT, c.Closure, c.former)
	enforce.Close(env.NFT, c.Closure, c.purge)
	return nil, nil
}

// Diff says which addresses are open although a policy selects the pod: no ADD closed them, and the agent
// does not enforce policies for them.
func (c *closed) Diff(_ context.Context, env *netstate.Env) (string, error) {
	open, err := enforce.Open(env.NFT, c.Closure)
	if err != nil {
		return "", err
	}
	if len(open) == 0 {
		return c.unchecked(env)
	}
	return fmt.Sprintf("network policies select %s, but %s (run patchbay repair)", c.pod, strings.Join(open, "; ")), nil
}

// unchecked says that the kernel does not check the sources of the pod's packets. ADDs of earlier releases
// did not ask for it; the agent does.
func (c *closed) unchecked(env *netstate.Env) (string, error) {
	if !c.checked {
		return "", nil
	}
	text, err := enforce.Unchecked(env.NFT, c.Closure)
	if text != "" {
		text = fmt.Sprintf("%s: %s (run patchbay repair)", c.pod, text)
	}
	return text, err
}

// Restore closes the pod of a record again, where a policy selects it and the agent does not enforce
// it. It returns what was open. `patchbay repair` calls Restore.
func Restore(ctx context.Context, p paths.Paths, fw *nft.Conn, rec *record.Record) (restored []string, err error) {
	if rec.Policed == nil {
		return restoreSends(ctx, fw, rec)
	}
	c, why := decideAgain(p, rec.Policed, nft.Comment(string(rec.Owner), rec.Network, rec.ContainerID, rec.IfName))
	restored, err = enforce.Reclose(ctx, fw, c.Closure)
	if len(restored) > 0 && why != nil {
		restored = append(restored, why.Error())
	}
	return restored, err
}

// restoreSends has the sources of a container that is not a pod checked again.
func restoreSends(ctx context.Context, fw *nft.Conn, rec *record.Record) ([]string, error) {
	if rec.Sends == nil {
		return nil, nil
	}
	c := closedBy(&rules.Decision{}, rec.Sends, nft.Comment(string(rec.Owner), rec.Network, rec.ContainerID, rec.IfName))
	text, err := enforce.Attended(ctx, fw, c.Closure)
	if text == "" || err != nil {
		return nil, err
	}
	return []string{text}, nil
}
