// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/spec"
)

// Cached is an attachment in a runtime's cache that uses the IPAM plugin dhcp. Its lease may come
// from another keeper, which holds leases only in memory.
type Cached struct {
	Args   dhcprpc.Args // the arguments with which its plugin called the keeper
	Result *spec.Result // the result of the whole chain
}

// ReadCache returns those attachments in a runtime's cache whose keeper listens on socket. dir is
// libcni's directory, which contains results/. If files cannot be read, ReadCache returns an
// error together with the other attachments.
func ReadCache(dir, socket string) (list []Cached, err error) {
	all, err := chain.New(chain.WithCacheDir(dir)).Attachments("")
	errs := []error{err}
	for _, c := range all {
		args, err := callOf(&c, socket)
		if err != nil {
			errs = append(errs, fmt.Errorf("read cached result of %s/%s: %w", c.ContainerID, c.IfName, err))
		}
		if args != nil && c.Result != nil {
			list = append(list, Cached{*args, c.Result})
		}
	}
	return list, errors.Join(errs...)
}

// callOf returns the arguments that the plugin dhcp of a cached attachment sends to the keeper on
// a socket. If the attachment does not use that plugin or that socket, callOf returns nil.
func callOf(c *chain.Cached, socket string) (*dhcprpc.Args, error) {
	conf, err := findIPAM(c.Config, 0)
	if err != nil || conf == nil {
		return nil, err
	}
	if err := conf.Set("name", c.Network); err != nil {
		return nil, err
	}
	config, err := conf.JSON()
	if err != nil {
		return nil, err
	}
	if ipam, err := dhcprpc.Parse(config); err != nil || ipam.Socket() != socket {
		return nil, err
	}
	pairs := make([]string, len(c.Args))
	for i, p := range c.Args {
		pairs[i] = p[0] + "=" + p[1]
	}
	return &dhcprpc.Args{ContainerID: c.ContainerID, Netns: c.Place(), IfName: c.IfName, Args: strings.Join(pairs, ";"), StdinData: config}, nil
}

// deepest is how many levels findIPAM searches. A chain inside a chain (type patchbay, wrap) is
// one level deeper.
const deepest = 4

// findIPAM finds the plugin whose IPAM is dhcp in a configuration. The configuration may be a
// plugin, a list, or a plugin that contains others.
func findIPAM(config []byte, depth int) (*spec.Object, error) {
	var conf struct {
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
		Plugins []json.RawMessage `json:"plugins"`
		Plugin  json.RawMessage   `json:"plugin"`
	}
	if err := json.Unmarshal(config, &conf); err != nil {
		return nil, err
	}
	if conf.IPAM.Type == "dhcp" {
		out, err := spec.ParseObject(config)
		return &out, err
	}
	if len(conf.Plugin) > 0 {
		conf.Plugins = append(conf.Plugins, conf.Plugin)
	}
	for _, p := range conf.Plugins {
		if depth == deepest {
			break
		}
		if found, err := findIPAM(p, depth+1); found != nil || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// Adopt takes over, in the background, the attachments that another keeper has left. If an
// interface has its address and no lease here, Adopt requests one. The server knows the client id
// and gives the same address. If the server gives another address, Adopt puts that one on the
// interface instead.
func (k *Keeper) Adopt(list []Cached) {
	for _, c := range list {
		k.adopting.Go(func() {
			if err := k.adopt(&c); err != nil {
				k.opts.Log("adopt %s/%s: %v", c.Args.ContainerID, c.Args.IfName, err)
			}
		})
	}
}

func (k *Keeper) adopt(c *Cached) error {
	r, err := k.request(&c.Args)
	if err != nil {
		return err
	}
	grants := k.grantsOf(c)
	if len(grants) == 0 || k.entry(r.Owner) != nil {
		return nil
	}
	k.opts.Log("%s/%s: taking over from another keeper", c.Args.ContainerID, c.Args.IfName)
	if _, err := k.Allocate(k.ctx, &c.Args); err != nil {
		return err
	}
	if e := k.entry(r.Owner); e != nil {
		e.replace(grants)
	}
	return nil
}

// grantsOf returns a grant for each address of a cached result that is still on the interface.
func (k *Keeper) grantsOf(c *Cached) (out []*client.Lease) {
	p, err := k.place(c.Args.Netns, c.Args.IfName)
	if err != nil {
		return nil // the container is gone and got no DEL
	}
	for _, ip := range c.Result.IPs {
		if had, err := p.Holds(ip.Address); err != nil || !had {
			continue
		}
		g := &client.Lease{Address: ip.Address, Gateway: ip.Gateway}
		for _, r := range c.Result.Routes {
			if r.Dst.Addr().Is4() == ip.Address.Addr().Is4() {
				g.Routes = append(g.Routes, r)
			}
		}
		out = append(out, g)
	}
	return out
}

// replace puts the granted addresses on the interface in the place of those in grants.
func (e *entry) replace(grants []*client.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.addrs {
		if a.grant == nil {
			continue
		}
		for _, g := range grants {
			if g.Address.Addr().Is4() == a.grant.Address.Addr().Is4() && g.Address != a.grant.Address {
				a.Behind = e.change(a, g, a.grant)
			}
		}
	}
}
