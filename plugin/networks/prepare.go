// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// work is one ADD, decided and not yet begun.
type work struct {
	request  *plugin.Request
	plan     *npwg.Plan
	lists    [][]*plugin.Inner // the plugins of each attachment of the plan
	gateways []npwg.Gateway
}

// prepare makes the plan, and lets the plugins refuse their configurations. It changes nothing.
func prepare(r *plugin.Request, c *chosen) (*work, error) {
	w := &work{request: r, gateways: c.gateways, plan: &npwg.Plan{
		Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName, Pod: c.pod, Args: r.Args, Path: pathOf(r),
	}}
	var err error
	if w.plan.Default, err = r.Prev().Encode(spec.Current); err != nil {
		return nil, err
	}
	for i := range c.networks {
		a, err := interfaceOf(r, &c.networks[i], &c.definitions[i])
		if err != nil {
			return nil, spec.Invalid("network %s: %w", &c.networks[i], err)
		}
		w.plan.Interfaces = append(w.plan.Interfaces, *a)
	}
	return w, w.members()
}

// failed says to which network of the pod an error belongs.
func failed(a *npwg.Interface, err error) error {
	return fmt.Errorf("network %s, interface %s: %w", a.Definition, a.IfName, err)
}

// pathOf returns where the plugins of further networks are found.
func pathOf(r *plugin.Request) []string {
	if dir := plugin.ConfOf[Conf](r).BinDir; dir != "" && !slices.Contains(r.Path, dir) {
		return append(slices.Clone(r.Path), dir)
	}
	return r.Path
}

// interfaceOf makes an attachment of a definition. It refuses what the network's plugins cannot give.
func interfaceOf(r *plugin.Request, s *npwg.Selection, d *npwg.Definition) (a *npwg.Interface, err error) {
	conf := plugin.ConfOf[Conf](r)
	list, err := listOf(conf.ConfDir, d)
	if err != nil {
		return nil, err
	}
	if d.Resource != "" && s.Ask.DeviceID == "" {
		return nil, fmt.Errorf("it needs a device of the resource %s, and devices that the kubelet gave to the pod are not looked up: name one as deviceID in the annotation", d.Resource)
	}
	a = &npwg.Interface{
		Definition: d.String(), UID: d.UID, ResourceVersion: d.ResourceVersion,
		Network: list.Name, IfName: s.Interface, CNIVersion: list.CNIVersion, DisableCheck: list.DisableCheck, Ask: s.Ask,
	}
	if a.CNIVersion == "" {
		a.CNIVersion = spec.Legacy
	}
	declared := make(map[string]bool)
	for i := range list.Plugins {
		p := &list.Plugins[i]
		if p.Type == name {
			return nil, errors.New("a further network cannot have the plugin networks")
		}
		raw, err := npwg.Configure(p.Raw, &s.Ask)
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", p, err)
		}
		a.Plugins = append(a.Plugins, raw)
		for capability, on := range p.Capabilities {
			declared[capability] = declared[capability] || on
		}
	}
	return a, s.Ask.Unserved(declared, conf.Strict)
}

// listOf returns the configuration of a definition: its own, or else that of a file of its name (§3.4.1).
func listOf(confDir string, d *npwg.Definition) (*chain.List, error) {
	if d.Config == "" {
		dir, err := chain.LoadDir(confDir)
		if err != nil {
			return nil, fmt.Errorf("it has no spec.config: %w", err)
		}
		list, err := dir.Find(d.Name)
		if err != nil {
			return nil, fmt.Errorf("it has no spec.config: %w", err)
		}
		return list, nil
	}
	config, isList, err := npwg.Named([]byte(d.Config), d.Name)
	if err != nil {
		return nil, err
	}
	parse := chain.ParseSingle
	if isList {
		parse = chain.ParseList
	}
	list, err := parse(config)
	if err == nil && len(list.Plugins) == 0 {
		err = spec.Invalid("no plugins in list")
	}
	return list, err
}

// members makes the plugins of all attachments, and lets them refuse their configurations.
func (w *work) members() error {
	for i := range w.plan.Interfaces {
		a := &w.plan.Interfaces[i]
		list, err := membersOf(w.request, w.plan, a)
		for _, m := range list {
			if err == nil {
				err = exists(w.request.Session, m.Type, w.plan.Path)
			}
			if err == nil {
				err = m.Prepare()
			}
		}
		if err != nil {
			return failed(a, err)
		}
		w.lists = append(w.lists, list)
	}
	return nil
}

// exists returns an error if there is no such plugin.
func exists(s *plugin.Session, pluginType string, path []string) error {
	if s.Plugin(pluginType) != nil {
		return nil
	}
	_, err := invoke.Find(pluginType, path)
	return err
}

// membersOf returns the plugins of an attachment. It returns those that can be read together with the first error.
func membersOf(r *plugin.Request, plan *npwg.Plan, a *npwg.Interface) (list []*plugin.Inner, err error) {
	caps, err := a.Ask.Capabilities()
	if err != nil {
		return nil, err
	}
	inner := requestOf(r, plan, a)
	for _, raw := range a.Plugins {
		m, merr := plugin.NewInner(inner, raw, plugin.Given{Caps: caps})
		if merr == nil {
			list = append(list, m)
		} else if err == nil {
			err = merr
		}
	}
	return list, err
}

// requestOf returns the request of which an attachment's plugins are a part: that of the call, with the names of the
// attachment. What a runtime passes for the default network does not reach other networks (§7.5).
func requestOf(r *plugin.Request, plan *npwg.Plan, a *npwg.Interface) *plugin.Request {
	call, inner := *r.Call, *r
	call.IfName, call.Args, call.Path = a.IfName, a.Ask.CNIArgs(plan.Args), joined(r.Path, plan.Path)
	inner.Call, inner.Network, inner.Version = &call, a.Network, a.CNIVersion
	inner.Owner = owner.Of(a.Network, r.ContainerID, a.IfName)
	return &inner
}

// joined returns the directories of a call, and after them those of the ADD: what removes a dead pod knows no directory.
func joined(path, more []string) []string {
	out := slices.Clone(path)
	for _, dir := range more {
		if !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	return out
}

// free returns an error if the pod has an interface of the plan already.
func (w *work) free(env *netstate.Env) error {
	for i := range w.plan.Interfaces {
		a := &w.plan.Interfaces[i]
		_, err := env.Link(netstate.Sandbox, a.IfName)
		if err == nil {
			err = spec.Errorf(spec.CodeInvalidEnvironment, "the pod has an interface of this name: call DEL first, or name another one in the annotation")
		} else if nl.IsNotFound(err) {
			continue
		}
		return failed(a, err)
	}
	return nil
}

// encoded returns a result in the version of its attachment.
func encoded(a *npwg.Interface, result *spec.Result) (json.RawMessage, error) {
	if result == nil {
		return nil, nil
	}
	return result.Encode(a.CNIVersion)
}
