// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// latency is how long a packet may wait in a bucket's queue: 25 ms, in microseconds. The
// reference uses the same value.
const latency = 25_000

// tbf is a token bucket filter. tbf is the root queue of a host link.
type tbf struct {
	link string
	shape
}

func (t tbf) String() string {
	return fmt.Sprintf("host: tc qdisc replace dev %s root handle 1: tbf rate %dbit burst %db latency 25ms", t.link, t.rate*8, t.burst)
}

// qdisc computes the kernel's numbers exactly as the reference does. So the CHECK of each
// plugin accepts the other's queue.
func (t tbf) qdisc(index int) *netlink.Tbf {
	ticks := float64(uint32(float64(t.burst)*netlink.TIME_UNITS_PER_SEC/float64(t.rate))) * netlink.TickInUsec()
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       t.rate,
		Limit:      uint32(min(float64(t.rate)*latency/netlink.TIME_UNITS_PER_SEC+float64(t.burst), math.MaxUint32)),
		Buffer:     uint32(ticks),
	}
}

// Ensure adds the queue.
func (t tbf) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	link, err := env.Link(netstate.Host, t.link)
	if err != nil {
		return nil, err
	}
	q := t.qdisc(link.Attrs().Index)
	if err := addQdisc(env, q, link); err != nil {
		return nil, fmt.Errorf("create qdisc tbf on %s: %w", t.link, err)
	}
	return func(context.Context) error { return deleteQdisc(env, q, t.link) }, nil
}

// Diff compares rate, limit and buffer of the queue.
func (t tbf) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Link(netstate.Host, t.link)
	if nl.IsNotFound(err) {
		return fmt.Sprintf("Failed to find qdisc: link %s is gone", t.link), nil
	} else if err != nil {
		return "", err
	}
	list, err := env.Host.QdiscList(link)
	if err != nil {
		return "", fmt.Errorf("list qdiscs of %s: %w", t.link, err)
	}
	want := t.qdisc(link.Attrs().Index)
	for _, q := range list {
		if got, ok := q.(*netlink.Tbf); ok && got.Parent == netlink.HANDLE_ROOT {
			return compare(t.link, want, got), nil
		}
	}
	return "Failed to find qdisc tbf on " + t.link, nil
}

func compare(link string, want, got *netlink.Tbf) string {
	switch {
	case got.Rate != want.Rate:
		return fmt.Sprintf("Rate doesn't match on %s: %d bytes/s, should be %d", link, got.Rate, want.Rate)
	case got.Limit != want.Limit:
		return fmt.Sprintf("Limit doesn't match on %s: %d bytes, should be %d", link, got.Limit, want.Limit)
	case got.Buffer != want.Buffer:
		return fmt.Sprintf("Buffer doesn't match on %s: %d ticks, should be %d", link, got.Buffer, want.Buffer)
	}
	return ""
}

// redirect sends packets that a host link receives through another link, where they can be
// queued. The container sends these packets.
type redirect struct{ from, to string }

func (d redirect) String() string {
	return fmt.Sprintf("host: tc filter add dev %s ingress u32 match all action mirred egress redirect dev %s", d.from, d.to)
}

// Ensure adds the ingress queue and its filter.
func (d redirect) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	from, err := env.Link(netstate.Host, d.from)
	if err != nil {
		return nil, err
	}
	to, err := env.Link(netstate.Host, d.to)
	if err != nil {
		return nil, err
	}
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: from.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}
	if err := addQdisc(env, ingress, from); err != nil {
		return nil, fmt.Errorf("create qdisc ingress on %s: %w", d.from, err)
	}
	undo := func(context.Context) error { return deleteQdisc(env, ingress, d.from) }
	if err := env.Host.FilterAdd(matchAll(from, to)); err != nil {
		return nil, errors.Join(fmt.Errorf("add filter on %s: %w", d.from, err), undo(context.Background()))
	}
	return undo, nil
}

// matchAll redirects every packet to the other link. NewMirredAction sets TC_ACT_STOLEN.
// Without it, the kernel would redirect a copy and let the packet itself continue without a
// limit.
func matchAll(from, to netlink.Link) *netlink.U32 {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: from.Attrs().Index, Parent: netlink.MakeHandle(0xffff, 0), Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		ClassId: netlink.MakeHandle(1, 1),
		Actions: []netlink.Action{netlink.NewMirredAction(to.Attrs().Index)},
	}
}

// Diff reports whether the filter is missing.
func (d redirect) Diff(_ context.Context, env *netstate.Env) (string, error) {
	missing := fmt.Sprintf("traffic of %s is not redirected to %s", d.from, d.to)
	from, err := env.Link(netstate.Host, d.from)
	if nl.IsNotFound(err) {
		return missing, nil
	} else if err != nil {
		return "", err
	}
	filters, err := env.Host.FilterList(from, netlink.MakeHandle(0xffff, 0))
	if err != nil {
		return "", fmt.Errorf("list filters of %s: %w", d.from, err)
	}
	if len(filters) == 0 {
		return missing, nil
	}
	return "", nil
}

// addQdisc adds a queue. addQdisc replaces a queue that an earlier ADD left. (A DEL leaves the
// queues, because the kernel deletes them with the link, and deleting each queue would wait
// for RCU.)
func addQdisc(env *netstate.Env, q netlink.Qdisc, link netlink.Link) error {
	err := env.Host.QdiscAdd(q)
	if !errors.Is(err, unix.EEXIST) || !leftover(env, q, link) {
		return err
	}
	if err := env.Host.QdiscDel(q); err != nil {
		return err
	}
	return env.Host.QdiscAdd(q)
}

// leftover reports whether the link has a queue of this kind, handle and parent. Only this
// plugin makes such a queue.
func leftover(env *netstate.Env, q netlink.Qdisc, link netlink.Link) bool {
	list, err := env.Host.QdiscList(link)
	return err == nil && slices.ContainsFunc(list, func(other netlink.Qdisc) bool {
		a, b := q.Attrs(), other.Attrs()
		return q.Type() == other.Type() && a.Handle == b.Handle && a.Parent == b.Parent
	})
}

func deleteQdisc(env *netstate.Env, q netlink.Qdisc, link string) error {
	err := env.Host.QdiscDel(q)
	if err != nil && !nl.IsNotFound(err) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("delete qdisc of %s: %w", link, err)
	}
	return nil
}

// ifb is the device that queues what a container sends.
type ifb struct {
	name  string
	like  string // the ifb gets the MTU of this host link
	owner owner.Key
	stale bool // an earlier ADD left a device with this name
}

func (i ifb) String() string {
	return fmt.Sprintf("host: ip link add %s up mtu-of %s type ifb", i.name, i.like)
}

// Ensure makes the device and writes our mark.
func (i ifb) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	like, err := env.Link(netstate.Host, i.like)
	if err != nil {
		return nil, err
	}
	if i.stale {
		if err := deleteLink(env.Host, i.name); err != nil {
			return nil, err
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags, attrs.TxQLen = i.name, like.Attrs().MTU, unix.IFF_UP, 0
	link := &netlink.Ifb{LinkAttrs: attrs}
	if err := env.Host.LinkAdd(link); err != nil {
		return nil, fmt.Errorf("add link %s type ifb: %w", i.name, err)
	}
	undo := func(context.Context) error { return deleteLink(env.Host, i.name) }
	if err := env.Host.LinkSetAlias(link, i.owner.Alias()); err != nil {
		return nil, errors.Join(fmt.Errorf("mark link %s: %w", i.name, err), undo(context.Background()))
	}
	made, err := env.Host.Link(i.name) // the result needs the device's MAC address
	if err != nil {
		return nil, errors.Join(err, undo(context.Background()))
	}
	env.Remember(netstate.Host, made)
	return undo, nil
}

// Diff reports whether the device is missing or down. If it is down, it drops everything that
// the container sends.
func (i ifb) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Link(netstate.Host, i.name)
	switch {
	case nl.IsNotFound(err):
		return fmt.Sprintf("get ifb device: %s is gone", i.name), nil
	case err != nil:
		return "", err
	case link.Attrs().RawFlags&unix.IFF_UP == 0:
		return fmt.Sprintf("ifb device %s is down, and drops what the container sends (ip link set %s up)", i.name, i.name), nil
	}
	return "", nil
}

// candidates returns the names that an attachment's ifb may have: the reference's name, and
// two of ours. The reference's name does not contain the interface name. So if a container has
// two attachments to one network, the second one needs our name.
func candidates(network, containerID string, o owner.Key) []string {
	return []string{kernel.ReferenceIFB(network, containerID), o.LinkName("bwp", 0), o.LinkName("bwp", 1)}
}

// freeName returns the first candidate that no other attachment uses. This attachment may already
// have a device with that name. If dead is set, the namespace of the earlier ADD is gone, and
// freeName reports the device as stale, so that the ADD removes it. Otherwise freeName returns an
// error.
func freeName(host *nl.Conn, names []string, o owner.Key, dead bool) (name string, stale bool, err error) {
	for _, name := range names {
		link, err := host.Link(name)
		switch {
		case nl.IsNotFound(err):
			return name, false, nil
		case err != nil:
			return "", false, err
		case link.Type() == "ifb" && link.Attrs().Alias == o.Alias():
			if dead {
				return name, true, nil
			}
			return "", false, fmt.Errorf("adding link: %s of this attachment exists already; DEL removes it: %w", name, unix.EEXIST)
		}
	}
	return "", false, fmt.Errorf("adding link: the names %v are all taken: %w", names, unix.EEXIST)
}

// owned returns the names of this attachment's devices. A device has the attachment's mark, or
// no mark if the reference made it.
func owned(host *nl.Conn, names []string, o owner.Key) (mine []string, err error) {
	var errs []error
	for _, name := range names {
		link, err := host.Link(name)
		if err != nil {
			if !nl.IsNotFound(err) {
				errs = append(errs, err)
			}
			continue
		}
		if alias := link.Attrs().Alias; link.Type() == "ifb" && (alias == "" || alias == o.Alias()) {
			mine = append(mine, name)
		}
	}
	return mine, errors.Join(errs...)
}

func deleteLink(host *nl.Conn, name string) error {
	link, err := host.Link(name)
	if nl.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	return netstate.DeleteLink(host, link)
}
