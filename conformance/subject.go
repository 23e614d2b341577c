// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// Subject describes a plugin under test for the suite.
type Subject struct {
	Type string `json:"type"`           // name of the executable
	Kind string `json:"kind"`           // interface, chained or ipam
	Name string `json:"name,omitempty"` // distinguishes several subjects of one plugin

	// Conf is the plugin's configuration without name and cniVersion. Second is
	// merged over it for the second attachment, where both cannot be equal (a
	// host port, say).
	Conf   Object `json:"conf,omitempty"`
	Second Object `json:"second,omitempty"`

	Args       string `json:"args,omitempty"`       // CNI_ARGS
	IfName     string `json:"ifname,omitempty"`     // default eth0
	MinVersion string `json:"minVersion,omitempty"` // oldest version that it supports; default 0.1.0

	// Prev is what the container has before a chained plugin is called: a veth pair with
	// these addresses, which the suite makes itself.
	Prev *Prev `json:"prev,omitempty"`

	// Needs is a kind of link, as in ip(8), that the kernel must support.
	Needs string `json:"needs,omitempty"`
	// Master is an Ethernet interface of the host that Conf names: the suite
	// makes it.
	Master string `json:"master,omitempty"`

	// Devices are names of devices that exist on the host before every script: one end of a
	// veth pair each.
	Devices []string `json:"devices,omitempty"`

	// Again means that a second ADD for the same attachment succeeds with the same result.
	// Otherwise it must fail and leave the first unchanged.
	Again bool `json:"again,omitempty"`

	// Break is how the suite damages an attachment: "link" deletes the container's
	// interface, "down" sets it down, "address" removes its addresses, "del" calls DEL,
	// "prev" changes the gateways in the previous result. The default is link for an
	// interface plugin, else del.
	Break string `json:"break,omitempty"`

	// Keep lists keys of Conf that name what to call, like ipam.type, and so remain in
	// "conf=bare" and "conf=wrong".
	Keep []string `json:"keep,omitempty"`

	// Leaves lists what DEL may leave on the host because it is deleted with the interface,
	// as prefixes of lines that "clean" prints.
	Leaves []string `json:"leaves,omitempty"`

	// Stateless means that nothing exists between ADD and DEL.
	Stateless bool `json:"stateless,omitempty"`
	// Unchecked means that CHECK cannot see the damage.
	Unchecked bool `json:"unchecked,omitempty"`
	// L2 means that the results have no addresses, so that versions before
	// 0.3.0 cannot express them.
	L2 bool `json:"l2,omitempty"`

	// Refused lists configurations that ADD must refuse before any work.
	Refused []Refusal `json:"refused,omitempty"`
}

// Object is a JSON object.
type Object = map[string]json.RawMessage

// Prev is the previous result for a chained plugin.
type Prev struct {
	Addresses []netip.Prefix `json:"addresses"`
	Gateways  []netip.Addr   `json:"gateways,omitempty"`
}

// Refusal is one configuration that must not be accepted.
type Refusal struct {
	About string `json:"about"`
	Conf  Object `json:"conf,omitempty"` // merged over Subject.Conf; null removes a key
	Args  string `json:"args,omitempty"`
	Code  uint   `json:"code,omitempty"` // 0 means any
	Msg   string `json:"msg,omitempty"`  // part of the message
}

// Contract returns the scripts.
func Contract() fs.FS { return sub(contract, "contract") }

// Subjects returns the descriptions of the plugins we know, one JSON file for each plugin.
func Subjects() fs.FS { return sub(subjects, "subjects") }

func sub(f fs.FS, dir string) fs.FS {
	s, err := fs.Sub(f, dir)
	if err != nil {
		panic(err) // a constant, valid path
	}
	return s
}

// Load reads every subject (*.json) of a directory.
func Load(fsys fs.FS) ([]Subject, error) {
	names, err := fs.Glob(fsys, "*.json")
	if err != nil {
		return nil, fmt.Errorf("list subjects: %w", err)
	}
	var out []Subject
	for _, name := range names {
		s, err := load(fsys, name)
		if err != nil {
			return nil, err
		}
		out = append(out, *s)
	}
	return out, nil
}

// Named returns one of Subjects by the name of its file.
func Named(name string) (*Subject, error) { return load(Subjects(), name+".json") }

func load(fsys fs.FS, name string) (*Subject, error) {
	data, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("read subject: %w", err)
	}
	s := &Subject{Name: strings.TrimSuffix(path.Base(name), ".json")}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read subject %s: %w", name, err)
	}
	if s.Type == "" || s.Kind == "" {
		return nil, fmt.Errorf("read subject %s: type and kind are required", name)
	}
	return s, nil
}

// leaves reports whether a line of "clean" may be left.
func (s *Subject) leaves(line string) bool {
	return slices.ContainsFunc(s.Leaves, func(start string) bool { return strings.HasPrefix(line, start) })
}

// ifName returns the interface the attachments get.
func (s *Subject) ifName() string {
	if s.IfName == "" {
		return "eth0"
	}
	return s.IfName
}

// breaking returns the way an attachment is damaged.
func (s *Subject) breaking() string {
	switch {
	case s.Break != "":
		return s.Break
	case s.Kind == "interface":
		return "link"
	}
	return "del"
}

func (s *Subject) minVersion() string {
	switch {
	case s.MinVersion != "":
		return s.MinVersion
	case s.L2:
		return "0.3.0"
	}
	return "0.1.0"
}

// merge returns base with the keys of over; a null removes a key.
func merge(base, over Object) Object {
	out := Object{}
	for k, v := range base {
		out[k] = v
	}
	for k, v := range over {
		if string(v) == "null" {
			delete(out, k)
			continue
		}
		out[k] = v
	}
	return out
}
