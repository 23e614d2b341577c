// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/patchbay-net/patchbay/spec"
)

// Container is what the attachments of one container share.
type Container struct {
	ID           string
	NetNS        string         // path of the container's namespace; may be empty for Detach
	Args         [][2]string    // CNI_ARGS, in this order
	Capabilities map[string]any // on every network; spec.Capabilities.Map makes one
}

// Network is one network of a container.
type Network struct {
	Name string // as in the network's file; empty means the default network (Runtime.Default)
	// List is the network's configuration. If it is nil, Attach reads the network's file; and Detach uses the configuration
	// that the ADD left in the cache, or else the network's file.
	List *List
	// IfName is the interface in the container. Without it, the interfaces of the networks are eth0, eth1 and so on, except
	// for names that other networks have.
	IfName       string
	Capabilities map[string]any // on this network only; they replace those of the Container
}

// member is one attachment that Attach or Detach works on.
type member struct {
	network string // empty: that of list, or else the default network
	list    *List  // may be nil
	Attachment
}

// Attach attaches a container to networks, in their order, or to the default network if the caller names none. The networks
// are added one after the other (SPEC.md, "Lifecycle & Ordering"). If one fails, Attach removes those that it has added,
// in reverse order; the error has that of the ADD and those of the removals. Attach does not remove an attachment
// that existed before (see Add). The results are in the order of the networks; spec.Merge makes one of them.
func (rt *Runtime) Attach(ctx context.Context, c Container, networks ...Network) ([]*spec.Result, error) {
	members, err := c.members(networks)
	if err != nil {
		return nil, err
	}
	for i := range members { // before anything is made
		if err := rt.resolve(&members[i]); err != nil {
			return nil, err
		}
	}
	var results []*spec.Result
	var added []member
	for _, m := range members {
		result, existed, err := rt.add(ctx, m.list, m.Attachment)
		if err != nil {
			err = fmt.Errorf("attach %s to network %s: %w", c.ID, m.network, err)
			return nil, rt.undo(ctx, err, func(ctx context.Context) error { return rt.delEach(ctx, added) })
		}
		if results = append(results, result); !existed {
			added = append(added, m)
		}
	}
	return results, nil
}

// Detach detaches a container from networks, in reverse order. Detach tries every removal, and joins the errors. A
// network that the cache does not have, and that no file defines any more, counts as detached. Without networks,
// Detach removes what the cache has of the container, the newest attachment first, or else the default network. The cache has
// only attachments whose ADD ended; so name the networks if an Attach may have been killed.
func (rt *Runtime) Detach(ctx context.Context, c Container, networks ...Network) error {
	if err := spec.ValidateContainerID(c.ID); err != nil {
		return err // the cache would list every container for an empty id
	}
	var members []member
	var err error
	if len(networks) == 0 {
		members, err = rt.cachedMembers(&c)
	}
	if len(members) == 0 && err == nil {
		members, err = c.members(networks)
	}
	return spec.Join(err, rt.delEach(ctx, members))
}

// members names the attachments of a container to networks.
func (c *Container) members(networks []Network) ([]member, error) {
	if len(networks) == 0 {
		networks = []Network{{}}
	}
	taken := make(map[string]bool)
	for _, n := range networks {
		if n.IfName != "" && taken[n.IfName] {
			return nil, spec.Errorf(spec.CodeInvalidEnvironment, "two networks of container %s have the interface %s", c.ID, n.IfName)
		}
		taken[n.IfName] = true
	}
	var out []member
	for _, n := range networks {
		a := Attachment{ContainerID: c.ID, NetNS: c.NetNS, IfName: n.IfName, Args: c.Args, Capabilities: maps.Clone(c.Capabilities)}
		if a.Capabilities == nil {
			a.Capabilities = make(map[string]any)
		}
		maps.Copy(a.Capabilities, n.Capabilities)
		for i := 0; a.IfName == ""; i++ {
			if name := fmt.Sprintf("eth%d", i); !taken[name] {
				a.IfName, taken[name] = name, true
			}
		}
		out = append(out, member{n.Name, n.List, a})
	}
	return out, nil
}

// cachedMembers returns the cached attachments of a container, the oldest first. A namespace that the caller does not
// name may be gone, and another one may have its path. A GC removes attachments whose cached result cannot be read.
func (rt *Runtime) cachedMembers(c *Container) (out []member, err error) {
	cached, err := rt.Attachments(c.ID)
	if errors.Is(err, ErrBrokenCache) {
		rt.warn(err)
		err = nil
	}
	slices.SortStableFunc(cached, func(a, b Cached) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.IfName, b.IfName)) })
	for _, a := range cached {
		a.NetNS = c.NetNS
		out = append(out, member{network: a.Network, Attachment: a.Attachment})
	}
	return out, err
}

// resolve finds the list of a member, and refuses names that no attachment can have.
func (rt *Runtime) resolve(m *member) (err error) {
	switch {
	case m.list != nil:
	case m.network == "":
		m.list, err = rt.Default()
	default:
		m.list, err = rt.Load(m.network)
	}
	if err != nil {
		return err
	}
	m.network = m.list.Name
	return m.validate(m.list)
}

// delEach detaches members in reverse order.
func (rt *Runtime) delEach(ctx context.Context, members []member) error {
	var errs []error
	for _, m := range slices.Backward(members) {
		if err := rt.delMember(ctx, m); err != nil {
			errs = append(errs, fmt.Errorf("detach %s from network %s: %w", m.ContainerID, m.network, err))
		}
	}
	return errors.Join(errs...)
}

// delMember detaches with the member's list, or with the configuration of the ADD, or else with that of the network's file.
func (rt *Runtime) delMember(ctx context.Context, m member) error {
	given := m.list != nil
	err := rt.resolve(&m)
	if !given && m.network != "" {
		derr := rt.DelCached(ctx, m.network, m.Attachment)
		if !CacheUnusable(derr) {
			return derr
		}
	}
	switch {
	case errors.Is(err, ErrNoNetwork):
		rt.warn(fmt.Errorf("nothing is removed for container %s, of which no result is cached: %w", m.ContainerID, err))
		return nil
	case err != nil:
		return err
	}
	return rt.Del(ctx, m.list, m.Attachment)
}
