// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/jsonat"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Validate judges the configuration of a network before anything is attached to it. It reports
// plugins that are missing or in an impossible order, and errors that the plugins find when they
// decode their configuration. It also judges the addresses that IPAM would give. Keys that no
// plugin reads and values that are surely mistakes are only warnings, because ADD ignores them,
// as the reference does. For other vendors' plugins, Validate checks whether they exist, but not
// their configuration. The findings have no Fix.
func Validate(ctx context.Context, rt *chain.Runtime, s *plugin.Session, l *chain.List) []Finding {
	v := &vetter{ctx: ctx, rt: rt, session: s, list: l, data: l.Bytes}
	if l.File != "" {
		if data, err := durable.ReadConf(l.File); err == nil {
			v.data = data
		}
	}
	root, err := jsonat.Parse(v.data)
	if err != nil {
		root = nil // the file has changed since the runtime read it
	}
	plugins := root.Get("plugins")
	if plugins != nil {
		v.keys(root, listKeys(), "", nil)
	}
	at := new(place)
	for i, p := range l.Plugins {
		v.plugin(p.Type, p.Raw, nodeOf(root, plugins, i), at)
	}
	return v.found
}

// nodeOf returns the position of plugin i in the list's file, or nil if the plugin was read
// from another file.
func nodeOf(root, plugins *jsonat.Node, i int) *jsonat.Node {
	switch {
	case plugins == nil:
		return root
	case i < len(plugins.Items):
		return plugins.Items[i]
	}
	return nil
}

type vetter struct {
	ctx     context.Context
	rt      *chain.Runtime
	session *plugin.Session
	list    *chain.List
	data    []byte
	found   []Finding

	problems int // how many of the findings are problems
}

// find adds a finding. offset is its position in the list's file, or -1 if that is not known.
func (v *vetter) find(level Level, offset int64, err error) {
	f := Finding{Level: level, What: err.Error(), Cause: err}
	if at := v.list.File; at != "" {
		if offset >= 0 {
			line, column := jsonat.Position(v.data, offset)
			at = fmt.Sprintf("%s:%d:%d", at, line, column)
		}
		f.What = at + ": " + f.What
	}
	v.found = append(v.found, f)
	if level == Problem {
		v.problems++
	}
}

func (v *vetter) problem(n *jsonat.Node, err error) { v.find(Problem, offsetOf(n), err) }

func (v *vetter) warn(offset int64, format string, args ...any) {
	v.find(Warning, offset, fmt.Errorf(format, args...))
}

func offsetOf(n *jsonat.Node) int64 {
	if n == nil {
		return -1
	}
	return n.Offset
}

// plugin judges one plugin, its IPAM plugin and the plugins within it.
func (v *vetter) plugin(pluginType string, raw json.RawMessage, n *jsonat.Node, at *place) {
	if !v.installed(pluginType, n) {
		at.pass(nil, pluginType)
		return
	}
	call := v.call(raw)
	p := v.session.Own(pluginType, call)
	if p == nil {
		at.pass(nil, pluginType)
		return
	}
	in := plugin.InList{First: at.before == 0, Main: at.main, Types: v.types(), Answers: at.answers, Granted: granted(raw)}
	v.own(p, call, n, in)
	v.order(p, n, at)
	v.members(pluginType, raw, n, at)
	if p.Kind == plugin.Interface {
		at.answers = append(at.answers, v.ipam(pluginType, call, n, in)...)
	}
}

func (v *vetter) types() (types []string) {
	for _, p := range v.list.Plugins {
		types = append(types, p.Type)
	}
	return types
}

// own makes one of our plugins judge its configuration.
func (v *vetter) own(p *plugin.Plugin, call *spec.Call, n *jsonat.Node, in plugin.InList) {
	before := v.problems
	if p.Conf != nil {
		v.conf(n, reflect.TypeOf(p.Conf()), p.Name)
	}
	if v.problems > before {
		return
	}
	v.capabilities(p, call, n, in.Granted)
	v.judge(p.Name, p.Name, call, n, in)
}

// judge adds the plugin's errors and warnings about a configuration to the findings.
func (v *vetter) judge(of, pluginType string, call *spec.Call, n *jsonat.Node, in plugin.InList) {
	doubts, err := v.session.Validate(pluginType, call, in)
	if err != nil {
		v.problem(n, fmt.Errorf("%s: %w", of, err))
		return
	}
	for _, d := range doubts {
		v.warn(offsetOf(n), "%s: %s", of, d)
	}
}

// installed reports whether a plugin exists and supports the version of the list.
func (v *vetter) installed(pluginType string, n *jsonat.Node) bool {
	one := &chain.List{Name: v.list.Name, CNIVersion: v.list.CNIVersion, Plugins: []chain.Plugin{{Type: pluginType}}}
	_, err := v.rt.Validate(v.ctx, one)
	if err == nil {
		return true
	}
	if errors.Is(err, invoke.ErrNotFound) {
		names := make([]string, len(v.session.Plugins))
		for i, p := range v.session.Plugins {
			names[i] = p.Name
		}
		err = fmt.Errorf("%w%s", err, didYouMean(pluginType, names))
	}
	v.problem(n, err)
	return false
}

// didYouMean suggests a known name that resembles word.
func didYouMean(word string, known []string) string {
	if near := jsonat.Nearest(word, known); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ""
}

// call returns the call that a runtime would make to a plugin of the list. It leaves out the
// parts that depend on a container.
func (v *vetter) call(raw json.RawMessage) *spec.Call {
	conf, _ := spec.ParseObject(raw)                                                     // the JSON was decoded before
	_ = conf.Runtime(spec.RuntimeKeys{Name: v.list.Name, CNIVersion: v.list.CNIVersion}) // strings always can be encoded
	data, _ := conf.JSON()                                                               // it was decoded from valid JSON
	return &spec.Call{Verb: spec.Status, Path: v.rt.Path(), Config: data}
}

// ipam judges the section "ipam" of a plugin. It asks the IPAM plugin about its configuration,
// and judges the addresses that this plugin would assign.
func (v *vetter) ipam(of string, call *spec.Call, n *jsonat.Node, in plugin.InList) []*spec.Result {
	v.nameServers(of+".dns", call.Config, n.Get("dns"))
	section := n.Get("ipam")
	head, err := spec.ParseConf(call.Config)
	if err != nil || head.IPAM.Type == "" {
		if section != nil && len(section.Members) > 0 {
			v.warn(offsetOf(section), "%s.ipam: it has no type, so no plugin reads it", of)
		}
		return nil
	}
	if !v.installed(head.IPAM.Type, section.Get("type")) {
		return nil
	}
	p := v.session.Own(head.IPAM.Type, call)
	switch {
	case p == nil:
		return nil
	case p.Kind != plugin.IPAM && p.Name != "wrap":
		v.problem(section, spec.Errorf(spec.CodeInvalidConfig, "%s.ipam: %s gives no addresses", of, p.Name))
		return nil
	}
	before := v.problems
	if t, ok := sectionOf(p); ok {
		v.value(section, t, of+".ipam")
	}
	if v.problems > before {
		return nil
	}
	in.First = false
	v.judge(of+".ipam", p.Name, call, section, in)
	return v.answers(of+".ipam", call, head, section, in)
}

// sectionOf returns the Go type into which an IPAM plugin decodes the section "ipam".
func sectionOf(p *plugin.Plugin) (reflect.Type, bool) {
	if p.Conf == nil {
		return nil, false
	}
	for _, f := range fieldsOf(reflect.TypeOf(p.Conf())) {
		if f.key == "ipam" {
			return f.kind, true
		}
	}
	return nil, false
}

// Status checks whether an ADD to a network would work now. doctor and `patchbay status` call it.
// Lists older than version 1.1.0 have no STATUS. For such a list, Status calls only our own
// plugins, as if the list had the current version. s holds our plugins.
func Status(ctx context.Context, rt *chain.Runtime, s *plugin.Session, l *chain.List) error {
	if spec.AtLeast(l.CNIVersion, "1.1.0") {
		return rt.Status(ctx, l)
	}
	list := *l
	list.CNIVersion = spec.Current
	list.Plugins = slices.DeleteFunc(slices.Clone(l.Plugins), func(p chain.Plugin) bool { return !own(s, rt, &p) })
	return rt.Status(ctx, &list)
}

// own reports whether a plugin and its IPAM plugin are built into this program.
func own(s *plugin.Session, rt *chain.Runtime, p *chain.Plugin) bool {
	call := &spec.Call{Path: rt.Path()}
	head, err := spec.ParseConf(p.Raw)
	return err == nil && s.Own(p.Type, call) != nil && (head.IPAM.Type == "" || s.Own(head.IPAM.Type, call) != nil)
}

// Inspect runs the CHECK of those plugins of an attachment that are built into this program. It
// does so even if the list's version has no CHECK, or if the list sets disableCheck, because
// lists set it for other vendors' plugins. Inspect takes no lock.
func Inspect(ctx context.Context, rt *chain.Runtime, s *plugin.Session, l *chain.List, a chain.Attachment) error {
	list := *l
	if !spec.AtLeast(list.CNIVersion, "0.4.0") {
		list.CNIVersion = spec.Current
	}
	call := &spec.Call{Path: rt.Path()}
	list.Plugins = slices.DeleteFunc(slices.Clone(l.Plugins), func(p chain.Plugin) bool { return s.Own(p.Type, call) == nil })
	return rt.Inspect(ctx, &list, a)
}
