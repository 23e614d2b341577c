// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/patchbay-net/patchbay/internal/jsonat"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// place is the position in a list that judging has reached.
type place struct {
	before int      // plugins
	main   string   // our plugin that makes the interface
	seen   []string // the plugins after it

	answers []*spec.Result // what IPAM would answer to main
}

// pass moves past a plugin; p is nil for another vendor's, which may make any interface.
func (at *place) pass(p *plugin.Plugin, pluginType string) {
	at.before++
	switch {
	case p == nil:
	case p.Kind == plugin.Chained:
		at.seen = append(at.seen, pluginType)
	case makes(p):
		at.main = p.Name
	}
}

// makes reports whether a plugin always makes the interface of CNI_IFNAME. host-device may
// leave its device to a program in user space.
func makes(p *plugin.Plugin) bool {
	return p.Kind == plugin.Interface && !slices.Contains([]string{"loopback", "host-device", "patchbay", "wrap"}, p.Name)
}

// order judges a plugin by those before it.
func (v *vetter) order(p *plugin.Plugin, n *jsonat.Node, at *place) {
	switch {
	case p.Kind == plugin.Chained && at.before == 0:
		v.problem(n, spec.Errorf(spec.CodeInvalidConfig, "%s: it comes before any plugin that makes an interface", p.Name))
	case makes(p) && at.main != "":
		v.problem(n, spec.Errorf(spec.CodeInvalidConfig, "%s: %s makes the interface already, and only one can", p.Name, at.main))
	case slices.Contains(at.seen, p.Name):
		v.warn(offsetOf(n), "%s: it comes twice, and has one record of an attachment", p.Name)
	case p.Kind == plugin.IPAM:
		v.warn(offsetOf(n), "%s: it makes no interface: it belongs in the ipam of one that does", p.Name)
	}
	if p.Name != "patchbay" && p.Name != "wrap" { // their members are judged in the list
		at.pass(p, p.Name)
	}
}

// granted returns the capabilities that a plugin declares.
func granted(raw json.RawMessage) map[string]bool {
	var conf struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	_ = json.Unmarshal(raw, &conf) // it was decoded before
	maps.DeleteFunc(conf.Capabilities, func(_ string, on bool) bool { return !on })
	return conf.Capabilities
}

// capabilities warns of names that are close to known capabilities.
func (v *vetter) capabilities(p *plugin.Plugin, call *spec.Call, n *jsonat.Node, granted map[string]bool) {
	known := slices.Clone(p.Capabilities)
	if head, err := spec.ParseConf(call.Config); err == nil && head.IPAM.Type != "" {
		if i := v.session.Own(head.IPAM.Type, call); i != nil {
			known = append(known, i.Capabilities...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(granted)) {
		if near := jsonat.Nearest(name, known); near != "" && !slices.Contains(known, name) {
			v.warn(offsetOf(n), "%s.capabilities: unknown capability %q: did you mean %q?", p.Name, name, near)
		}
	}
}

// members judges the plugins of a list in one process, or the wrapped one.
func (v *vetter) members(pluginType string, raw json.RawMessage, n *jsonat.Node, at *place) {
	var conf struct {
		Plugin  json.RawMessage   `json:"plugin"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(raw, &conf) != nil {
		return
	}
	switch pluginType {
	case "patchbay":
		for i, m := range conf.Plugins {
			v.handedDown(m, granted(raw), nodeOf(nil, n.Get("plugins"), i))
			v.member(m, nodeOf(nil, n.Get("plugins"), i), at)
		}
	case "wrap":
		v.member(inherited(conf.Plugin, raw), n.Get("plugin"), at)
	}
}

// inherited adds the wrapper's capabilities to a wrapped plugin that declares none, as
// wrap does.
func inherited(inner, wrapper json.RawMessage) json.RawMessage {
	conf := make(map[string]any)
	if json.Unmarshal(inner, &conf) != nil || conf["capabilities"] != nil {
		return inner
	}
	conf["capabilities"] = granted(wrapper)
	data, err := json.Marshal(conf)
	if err != nil {
		return inner
	}
	return data
}

func (v *vetter) member(raw json.RawMessage, n *jsonat.Node, at *place) {
	if kind := typeOf(raw); kind != "" {
		v.plugin(kind, raw, n, at)
	}
}

func typeOf(raw json.RawMessage) string {
	var head struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(raw, &head) // judging the outer plugin reports the error
	return head.Type
}

// handedDown warns of capabilities that a member declares and the list around it does not:
// the runtime passes them to neither.
func (v *vetter) handedDown(member json.RawMessage, outer map[string]bool, n *jsonat.Node) {
	for _, name := range slices.Sorted(maps.Keys(granted(member))) {
		if !outer[name] {
			v.warn(offsetOf(n), "%s: no runtime gives it the capability %s: patchbay around it does not declare it (patchbay convert does)", typeOf(member), name)
		}
	}
}

// nameServers warns of name servers that are no addresses.
func (v *vetter) nameServers(path string, config []byte, n *jsonat.Node) {
	var conf struct {
		DNS spec.DNS `json:"dns"`
	}
	_ = json.Unmarshal(config, &conf) // judging the plugin reports the error
	for i, s := range conf.DNS.Nameservers {
		if !isAddress(s) {
			v.warn(offsetOf(n), "%s: %q is no address", fmt.Sprintf("%s.nameservers[%d]", path, i), s)
		}
	}
}
