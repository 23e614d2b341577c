// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/cli/netfile"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/spec"
)

// networkRemoveCommand removes networks.
type networkRemoveCommand struct {
	app   *app
	Force bool `long:"force" short:"f" description:"detach what is attached; remove a file that network create did not write"`
	JSON  bool `long:"json" description:"print a JSON array of what went and what stays"`
	Args  struct {
		Networks []networkName `positional-arg-name:"NETWORK" required:"1"`
	} `positional-args:"yes"`
}

// Execute removes each network that it may remove, and reports why the others stay.
func (c *networkRemoveCommand) Execute([]string) error {
	if slices.Contains(c.Args.Networks, "") { // checked before anything is removed
		_, err := c.app.network("")
		return err
	}
	session := c.app.session()
	defer session.Close()
	k := kernel.OfSession(session)
	host, err := k.Host()
	if err != nil {
		return err
	}
	m := &netfile.Remover{Dir: confDir(c.app.getenv), Paths: c.app.paths, Host: host, NFT: k.NFT, Records: k.Records, Sysctl: netfile.SysctlFiles()}
	unlock, err := m.Lock(c.app.ctx)
	if err != nil {
		return err
	}
	defer unlock()
	done, errs := []*netfile.Removal{}, []error{}
	for _, name := range c.Args.Networks {
		n, err := c.removable(string(name))
		var r *netfile.Removal
		if err == nil {
			r, err = c.remove(m, n)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("remove network %s: %w", name, err))
		}
		if r != nil && (err == nil || len(r.Removed)+len(r.Kept) > 0) {
			done = append(done, r)
		}
	}
	netfile.Latest(done)
	for _, r := range done {
		errs = append(errs, c.tell(r))
	}
	if c.JSON {
		errs = append(errs, c.app.printJSON(done))
	}
	return errors.Join(errs...)
}

// removable finds a network, and returns an error if it must not be removed.
func (c *networkRemoveCommand) removable(name string) (*network, error) {
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".conflist") {
		return nil, usage("", "%s is a file: networks are removed by name", name)
	}
	n, err := c.app.network(name)
	if err != nil {
		return nil, err
	}
	if !c.Force && !n.builtin && !netfile.Ours(n.List) {
		return nil, hinted(fmt.Errorf("%s was not written by patchbay network create", n.File),
			"remove it with the program that wrote it (podman network rm); --force removes it all the same")
	}
	return n, c.detachable(n)
}

// detachable returns an error if the network has living attachments, unless --force is given
// and they can be detached.
func (c *networkRemoveCommand) detachable(n *network) error {
	list, err := c.attached(n, !c.Force)
	if err != nil {
		return fmt.Errorf("list its attachments: %w", err)
	}
	var living, foreign []string
	for _, s := range list {
		if s.Driver != "" || !s.Cached {
			foreign = append(foreign, s.name())
		}
		living = append(living, s.name())
	}
	switch {
	case len(living) == 0:
		return nil
	case !c.Force:
		return hinted(fmt.Errorf("attached to it: %s", strings.Join(living, ", ")), "stop these containers; --force detaches them")
	case len(foreign) > 0:
		return hinted(fmt.Errorf("attached to it: %s", strings.Join(foreign, ", ")),
			"only the runtime that attached them can detach them, since their results are not in %s", c.app.paths.CNI)
	}
	return nil
}

// attached returns the attachments that keep a network from being removed. These are all that ps
// or gc does not call dead. If unsure is false, an attachment that only gc found counts only if
// it is certainly alive.
func (c *networkRemoveCommand) attached(n *network, unsure bool) (list []*localAttachment, err error) {
	all, err := c.app.attachments(n.Name)
	if err != nil {
		return nil, err
	}
	judged, err := c.app.judge(c.app.ctx, n.Name)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.living() {
			list = append(list, s)
		}
	}
	for _, a := range judged.Attachments {
		s := of(a, all)
		if a.State == gc.Alive || a.State == gc.Unsure && unsure {
			list = append(list, s)
		}
	}
	order.Stable(list, func(x, y *localAttachment) int { return cmp.Compare(x.name(), y.name()) })
	list = slices.Compact(list) // an attachment that both ps and gc found is in the list twice
	ports, err := c.ports(n, judged.Nameless)
	return append(list, ports...), err
}

// ports returns the attachments that have nothing left except an interface on the network's bridge.
// The interface must be in use.
func (c *networkRemoveCommand) ports(n *network, nameless []*gc.Candidate) (list []*localAttachment, err error) {
	s := c.app.session()
	defer s.Close()
	host, err := kernel.OfSession(s).Host()
	if err != nil {
		return nil, err
	}
	bridge, err := host.Link(netfile.Describe(n.List).Interface)
	if err != nil {
		return nil, nil //nolint:nilerr // a missing bridge has no ports
	}
	for _, a := range nameless {
		for _, name := range a.Links() {
			if port, err := host.Link(name); err == nil && a.State == gc.Alive && port.Attrs().MasterIndex == bridge.Attrs().Index {
				list = append(list, &localAttachment{Network: n.Name, ContainerID: "owner " + string(a.Owner), IfName: name})
			}
		}
	}
	return list, nil
}

// living reports whether the container may exist. If its namespace is not known, living returns true.
func (s *localAttachment) living() bool { return s.Alive || s.NetNS == "" }

func (s *localAttachment) name() string { return s.ContainerID + "/" + s.IfName }

// remove detaches the attachments, collects what is dead, and removes the network.
func (c *networkRemoveCommand) remove(m *netfile.Remover, n *network) (*netfile.Removal, error) {
	rt := c.app.runtime(n)
	detached, err := c.detach(rt, n)
	done := &netfile.Removal{Network: n.Name, Removed: detached, Kept: []string{}}
	if err != nil {
		return done, err
	}
	alive := func(context.Context) (keep []spec.AttachmentKey, err error) {
		list, err := c.attached(n, true)
		for _, s := range list {
			keep = append(keep, s.key())
		}
		return keep, err
	}
	if err := rt.GC(c.app.ctx, chain.Keep{List: n.List, Now: alive, Everyones: true}); err != nil {
		return done, err
	}
	r, err := c.removeEmpty(m, rt, n)
	if r == nil {
		return done, err
	}
	r.Removed = append(detached, r.Removed...)
	return r, err
}

// detach detaches what a runtime cached: what is dead and, with --force, what is alive. It returns a
// line for each living one, because a container lost its network.
func (c *networkRemoveCommand) detach(rt *chain.Runtime, n *network) (living []string, err error) {
	living = []string{}
	list, err := c.app.attachments(n.Name)
	if err != nil {
		return living, err
	}
	for _, s := range list {
		if !s.Cached || !c.Force && s.living() {
			continue
		}
		at := chain.Attachment{ContainerID: s.ContainerID, IfName: s.IfName, NetNS: s.NetNS}
		if err := rt.Del(c.app.ctx, n.List, at); err != nil {
			return living, fmt.Errorf("detach %s: %w", s.name(), err)
		}
		if s.Alive {
			living = append(living, fmt.Sprintf("attachment %s of %s, which was alive", s.name(), s.NetNS))
		}
	}
	return living, nil
}

// removeEmpty checks again that nothing is attached, and removes the network. Meanwhile it holds
// the lock of the network's ADDs. So an ADD that waits finds the file gone. Other runtimes do not
// take that lock; removeEmpty warns about what they attach after the check.
func (c *networkRemoveCommand) removeEmpty(m *netfile.Remover, rt *chain.Runtime, n *network) (r *netfile.Removal, err error) {
	err = rt.Exclusive(c.app.ctx, n.Name, func() error {
		err := c.empty(n)
		if err != nil {
			return err
		}
		if r, err = m.Remove(c.app.ctx, n.List); err == nil && !n.builtin {
			c.app.warn(c.empty(n))
		}
		return err
	})
	return r, err
}

// empty returns an error if the network has attachments.
func (c *networkRemoveCommand) empty(n *network) error {
	list, err := c.attached(n, !c.Force)
	if err == nil && len(list) > 0 {
		err = hinted(fmt.Errorf("%s was attached meanwhile", list[0].name()), "stop its container and repeat; --force detaches it")
	}
	return err
}

// tell prints what was removed, and warns about what stays.
func (c *networkRemoveCommand) tell(r *netfile.Removal) error {
	for _, s := range r.Kept {
		c.app.warn(fmt.Errorf("left: %s", s))
	}
	if c.JSON || len(r.Removed) == 0 {
		return nil
	}
	return c.app.print("removed " + strings.Join(r.Removed, "\nremoved ") + "\n")
}
