// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// Attached is one attachment of this node. If no runtime has cached them, Result and Config are nil.
type Attached struct {
	*gc.Attached
	proc string
}

// Name names the attachment in messages. cnitool derives a container's id from the path of the
// namespace. For such an id, Name uses the path.
func (a *Attached) Name() string {
	name := a.Network + "/" + a.ContainerID
	if strings.HasPrefix(a.ContainerID, "cnitool-") && a.NetNS != "" {
		name = a.Network + "/" + filepath.Base(a.NetNS)
	}
	if a.IfName != "eth0" {
		name += "/" + a.IfName
	}
	if pod := a.Pod(); pod != "" {
		name += " of pod " + pod
	}
	return name
}

// Owner is the key that marks every object of the attachment.
func (a *Attached) Owner() owner.Key { return owner.Of(a.Network, a.ContainerID, a.IfName) }

// Uncached reports whether the result of the ADD is lost. Some runtimes, such as Multus and
// patchbayd docker, cache results outside the usual directory. Uncached searches their
// directories too.
func (a *Attached) Uncached(p paths.Paths) bool {
	if a.Result != nil {
		return false
	}
	name := results.Name(a.Network, a.ContainerID, a.IfName)
	others, _ := filepath.Glob(results.Dir(filepath.Join(p.CNI, "*")))
	ours, _ := filepath.Glob(results.Dir(filepath.Join(p.State, "docker", "cache", "*")))
	return !slices.ContainsFunc(append(others, ours...), func(dir string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	})
}

// Inspector compares the attachments of a node with the kernel. It finds the attachments in the
// results that runtimes cache and in our records. It calls no plugin, so it works for other
// vendors' plugins too. For each attachment it takes at most as long as an ADD. It looks up only
// once what several attachments share.
type Inspector struct {
	kernel *kernel.Kernel
	proc   string
	facts  map[string]record.Fact
	lost   map[string][]netstate.Lost

	accepted func() (bool, error) // reports whether iptables accepts all addresses; asked once
}

// NewInspector returns an Inspector. proc is the path of the mounted procfs.
func NewInspector(k *kernel.Kernel, proc string) *Inspector {
	l := &Inspector{kernel: k, proc: proc, facts: make(map[string]record.Fact), lost: make(map[string][]netstate.Lost)}
	_, facts, _ := k.Records.Facts() // the check leftovers reports files that cannot be read
	for _, f := range facts {
		l.facts[f.Name] = f
	}
	l.accepted = sync.OnceValues(func() (bool, error) {
		records, _ := k.Records.List("")
		return netstate.AllAccepted(&netstate.Env{NFT: k.NFT}, records)
	})
	return l
}

// List returns the attachments in cached results and records. If files cannot be read, it
// returns an error together with the attachments it could read.
func (l *Inspector) List(rt *chain.Runtime) (list []*Attached, err error) {
	f := gc.ReadFiles(rt, l.kernel.Records, nil)
	for _, a := range f.Attached {
		list = append(list, &Attached{a, l.proc})
	}
	order.By(list, func(x, y *Attached) int { return cmp.Compare(x.Name(), y.Name()) })
	return list, f.Errors()
}

// NetNSDeleted reports whether the attachment's namespace certainly no longer exists.
func (a *Attached) NetNSDeleted() bool {
	if a.NetNS == "" {
		return false
	}
	state, _ := (&life.Judge{Proc: a.proc}).AtPath(a.NetNS, a.mark())
	return state == life.Dead
}

// mark returns what distinguishes the attachment's namespace from a later one at its path, or
// nil if no record has it.
func (a *Attached) mark() (mark *life.Mark) {
	for _, r := range a.Records {
		if r.NetNS == a.NetNS && r.NetNSMark != nil {
			mark = r.NetNSMark
		}
	}
	return mark
}

// Compare returns what links and Firewall find, and differences in our firewall table as a
// whole.
func (l *Inspector) Compare(ctx context.Context, a *Attached) (*netstate.Differences, error) {
	other, err := l.links(ctx, a)
	lost, ferr := l.Firewall(ctx, a)
	d := &netstate.Differences{Lost: lost, Other: other}
	if len(a.Records) == 0 {
		return d, errors.Join(err, ferr)
	}
	table, terr := netstate.State{netstate.Table{}}.Diff(ctx, &netstate.Env{NFT: l.kernel.NFT})
	d.Add(table)
	return d, errors.Join(err, ferr, terr)
}

// Unrecorded reports whether the host's interface of an attachment carries our mark although
// there is no record. Then the records were lost, perhaps with all of /run/patchbay.
func (l *Inspector) Unrecorded(a *Attached) bool {
	if a.Result == nil || len(a.Records) > 0 {
		return false
	}
	host, err := l.kernel.Host()
	if err != nil {
		return false
	}
	alias := a.Owner().Alias()
	return slices.ContainsFunc(a.Result.Interfaces, func(i spec.Interface) bool {
		if i.Sandbox != "" {
			return false
		}
		link, err := host.Link(i.Name)
		return err == nil && link.Attrs().Alias == alias
	})
}

// Firewall returns the elements that the attachment's records list but the kernel lacks, and the
// facts that the records name.
func (l *Inspector) Firewall(ctx context.Context, a *Attached) (lost []netstate.Lost, err error) {
	env := &netstate.Env{NFT: l.kernel.NFT}
	for _, r := range a.Records {
		for _, e := range r.Elements {
			more, eerr := netstate.Element{Element: e}.Lost(ctx, env)
			lost, err = append(lost, more...), errors.Join(err, eerr)
		}
		more, aerr := l.addresses(ctx, env, r)
		lost, err = append(lost, more...), errors.Join(err, aerr)
		for _, name := range r.Shared {
			more, ferr := l.fact(ctx, env, name)
			lost, err = append(lost, more...), errors.Join(err, ferr)
		}
	}
	return lost, err
}

// addresses returns the addresses of one record that iptables should accept but does not.
func (l *Inspector) addresses(ctx context.Context, env *netstate.Env, r *record.Record) ([]netstate.Lost, error) {
	if len(r.Accepts) == 0 {
		return nil, nil
	}
	if all, err := l.accepted(); all || err != nil {
		return nil, err
	}
	return netstate.AcceptedOf(r).Lost(ctx, env)
}

func (l *Inspector) fact(ctx context.Context, env *netstate.Env, name string) ([]netstate.Lost, error) {
	f, ok := l.facts[name]
	if _, asked := l.lost[name]; asked || !ok {
		return l.lost[name], nil
	}
	lost, err := netstate.HeldFact{Fact: f}.Lost(ctx, env)
	if err == nil {
		l.lost[name] = lost
	}
	return lost, err
}

// links compares the host's links with the records. If a result is cached, it also compares the
// container's interface with the addresses and routes in it.
func (l *Inspector) links(ctx context.Context, a *Attached) (diffs []string, err error) {
	host, err := l.kernel.Host()
	if err != nil {
		return nil, err
	}
	for _, name := range a.hostLinks() {
		if _, err := host.Link(name); nl.IsNotFound(err) {
			diffs = append(diffs, fmt.Sprintf("the host's link %s is missing", name))
		}
	}
	if a.Result == nil || a.NetNS == "" {
		return diffs, nil
	}
	ns, err := netns.Open(a.NetNS)
	if err != nil {
		return diffs, err
	}
	inside, err := nl.In(ns, l.proc)
	if err != nil {
		return diffs, err
	}
	defer inside.Close()
	more, err := a.compareInside(ctx, &netstate.Env{Host: host, Sandbox: inside})
	return append(diffs, more...), err
}

// hostLinks returns the names of the host's links that this attachment's records list, sorted and
// without duplicates. Without a record it returns none, because a bridge in the result may belong
// to others.
func (a *Attached) hostLinks() (names []string) {
	for _, r := range a.Records {
		names = append(names, r.Links...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// compareInside compares the container's interface with the cached result, if the result says
// that this interface is in this namespace.
func (a *Attached) compareInside(ctx context.Context, env *netstate.Env) (diffs []string, err error) {
	at := slices.IndexFunc(a.Result.Interfaces, func(i spec.Interface) bool { return i.Name == a.IfName && i.Sandbox == a.NetNS })
	if at < 0 {
		return nil, nil
	}
	if _, err := env.Link(netstate.Sandbox, a.IfName); err != nil {
		if nl.IsNotFound(err) {
			return []string{fmt.Sprintf("%s is missing in %s", a.IfName, a.NetNS)}, nil
		}
		return nil, err
	}
	look := func(o netstate.Object, text string) bool {
		d, derr := o.Diff(ctx, env)
		lost := derr == nil && d != ""
		if err = errors.Join(err, derr); lost {
			diffs = append(diffs, text)
		}
		return lost
	}
	for _, ip := range a.Result.IPs {
		if ip.Interface == nil || *ip.Interface == at {
			addr := netstate.Addr{Where: netstate.Sandbox, Link: a.IfName, Prefix: ip.Address, NoRoute: true}
			switch {
			case look(addr, fmt.Sprintf("%s has lost its address %s", a.IfName, ip.Address)):
			case ip.Address.Addr().IsLoopback(): // the kernel makes no route in the main table
				look(netstate.Up{Where: netstate.Sandbox, Link: a.IfName}, fmt.Sprintf("%s is down in %s", a.IfName, a.NetNS))
			default:
				addr.NoRoute = false
				look(addr, fmt.Sprintf("the route to %s is missing in %s, or %s is down", ip.Address.Masked(), a.NetNS, a.IfName))
			}
		}
	}
	if len(diffs) > 0 {
		return slices.Compact(diffs), err // with the address, the kernel removes the routes
	}
	for _, r := range a.Result.Routes {
		route := netstate.Route{Where: netstate.Sandbox, Link: a.IfName, Dst: r.Dst, Gateway: r.GW}
		look(route, fmt.Sprintf("the route to %s is missing in %s", r.Dst, a.NetNS))
	}
	return diffs, err
}
