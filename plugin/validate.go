// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"reflect"

	"github.com/patchbay-net/patchbay/spec"
)

// InList is what a list adds to a plugin's configuration.
type InList struct {
	First   bool            // no plugin comes before this one in the list
	Main    string          // name of the plugin before this one that makes the interface; empty unless it is one of ours
	Granted map[string]bool // capabilities that the plugin declares and a runtime may give
	Answers []*spec.Result  // answers that the IPAM plugin of Main could give
}

// Validate lets a plugin of this process check its configuration in a list, for any version.
// doubts describes valid settings that are surely mistakes. If the plugin belongs to another
// program, Validate only checks whether that program exists.
func (s *Session) Validate(pluginType string, c *spec.Call, in InList) (doubts []string, err error) {
	r, err := s.judged(pluginType, c, in)
	if err != nil || r == nil {
		return nil, err
	}
	if err := cmp.Or(r.validate(), r.expressible()); err != nil {
		return nil, err
	}
	if r.Plugin.Warnings != nil {
		doubts = r.Plugin.Warnings(r)
	}
	return doubts, nil
}

// judged returns the request with which a plugin of this process checks a configuration. If the
// plugin belongs to another program, judged returns nil.
func (s *Session) judged(pluginType string, c *spec.Call, in InList) (*Request, error) {
	p, _, err := s.resolve(pluginType, c)
	if err != nil || p == nil {
		return nil, err
	}
	head, err := spec.ParseConf(c.Config)
	if err != nil {
		return nil, err
	}
	call := *c
	call.Verb = spec.Status
	return &Request{Call: &call, Plugin: p, Network: head.Name, Version: head.CNIVersion, Head: head, Session: s, InList: &in}, nil
}

// Samples returns the answers that the configuration's IPAM plugin could give (Plugin.Samples)
// while a list is validated. If that plugin belongs to another program, there are none.
func (r *Request) Samples() []*spec.Result {
	if r.InList == nil || r.Head.IPAM.Type == "" {
		return nil
	}
	of, err := r.Session.judged(r.Head.IPAM.Type, r.Call, *r.InList)
	if err != nil || of == nil || of.Plugin.Samples == nil {
		return nil
	}
	return of.Plugin.Samples(of)
}

// Own returns the plugin of this process with this type. If the plugin belongs to another program
// or is missing, Own returns nil.
func (s *Session) Own(pluginType string, c *spec.Call) *Plugin {
	p, _, _ := s.resolve(pluginType, c)
	return p
}

// KindWord describes a Go type in JSON's words.
func KindWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return KindWord(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0"
	}
	return "a number"
}
