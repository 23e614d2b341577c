// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// Subject describes the plugin that the suite tests.
type Subject struct {
	Type string `json:"type"`           // name of the executable
	Kind string `json:"kind"`           // interface, chained or ipam
	Name string `json:"name,omitempty"` // tells several subjects of one plugin apart

	// Conf is the plugin's configuration without name and cniVersion. For the second attachment, the
	// keys of Second replace those of Conf. Some values must differ there, such as a host port.
	// plugin/plugintest also repeats the ADD of the first attachment with them, if Again is set.
	Conf   Object `json:"conf,omitempty"`
	Second Object `json:"second,omitempty"`

	Args   string `json:"args,omitempty"`   // CNI_ARGS, in which {id} stands for CNI_CONTAINERID
	IfName string `json:"ifname,omitempty"` // default eth0

	// MinVersion and MaxVersion are the oldest and the newest version that the plugin supports. Without them, patchbay-conformance
	// asks the plugin, and Run takes 0.1.0 and the suite's newest.
	MinVersion string `json:"minVersion,omitempty"`
	MaxVersion string `json:"maxVersion,omitempty"`

	// Prev describes what the suite prepares for a chained plugin: a veth pair in the container
	// with these addresses.
	Prev *Prev `json:"prev,omitempty"`

	// Needs is a kind of link, as ip(8) names it, that the kernel must support.
	Needs string `json:"needs,omitempty"`
	// Master is the host's Ethernet interface that Conf names. The suite makes it.
	Master string `json:"master,omitempty"`

	// Devices are names of host devices that Conf uses. Before every script the suite makes each
	// one, as one end of a veth pair.
	Devices []string `json:"devices,omitempty"`

	// Again means that a second ADD of the same attachment succeeds with the same result. If Again
	// is false, the second ADD must fail and leave the first attachment unchanged.
	Again bool `json:"again,omitempty"`

	// Break says how the suite damages an attachment: "link" deletes the container's interface,
	// "down" sets it down, "address" removes its addresses, "del" calls DEL, and "prev" changes
	// the gateways in the previous result. The default is "link" for an interface plugin and
	// "del" for others.
	Break string `json:"break,omitempty"`

	// Keep lists the keys of Conf that choose which program is called, such as ipam.type.
	// "conf=bare" and "conf=wrong" leave these keys unchanged.
	Keep []string `json:"keep,omitempty"`

	// Leaves lists objects that DEL may leave on the host, because the kernel deletes them with the
	// interface. Each entry is the beginning of a line that "clean" prints.
	Leaves []string `json:"leaves,omitempty"`

	// State are directories, besides those of CNI's own programs, in which the plugin keeps files of an attachment.
	State []string `json:"state,omitempty"`

	// Stateless means that an ADD changes nothing on the node.
	Stateless bool `json:"stateless,omitempty"`
	// Unchecked means that the plugin's CHECK cannot notice the damage that Break does.
	Unchecked bool `json:"unchecked,omitempty"`
	// L2 means that the results have no addresses. Versions before 0.3.0 cannot express such
	// results.
	L2 bool `json:"l2,omitempty"`

	// Refused lists configurations that ADD must refuse before it does any work.
	Refused []Refusal `json:"refused,omitempty"`
}

// Object is a JSON object.
type Object = map[string]json.RawMessage

// Prev describes the previous result for a chained plugin.
type Prev struct {
	Addresses []netip.Prefix `json:"addresses"`
	Gateways  []netip.Addr   `json:"gateways,omitempty"`
}

// Refusal is a configuration that the plugin must refuse, and the error that the suite
// expects.
type Refusal struct {
	About string `json:"about"`
	Conf  Object `json:"conf,omitempty"` // merged over Subject.Conf; null removes a key
	Args  string `json:"args,omitempty"`
	Code  uint   `json:"code,omitempty"` // 0 means any
	Msg   string `json:"msg,omitempty"`  // part of the message
}

// Contract returns the scripts.
func Contract() fs.FS { return subdirectory(contract, "contract") }

// Subjects returns the descriptions of the plugins that this package knows. Each is a JSON
// file.
func Subjects() fs.FS { return subdirectory(subjects, "subjects") }

func subdirectory(f fs.FS, dir string) fs.FS {
	s, err := fs.Sub(f, dir)
	if err != nil {
		panic(err) // the path is constant and valid, so this cannot fail
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

// Named returns the description in subjects/NAME.json.
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

// leaves reports whether DEL may leave the object that this line of "clean" names.
func (s *Subject) leaves(line string) bool {
	return slices.ContainsFunc(s.Leaves, func(start string) bool { return strings.HasPrefix(line, start) })
}

// breaking returns how the suite damages an attachment.
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

// newest returns the newest version at which the suite runs.
func (s *Subject) newest() string {
	if s.MaxVersion == "" || spec.AtLeast(s.MaxVersion, spec.Current) {
		return spec.Current
	}
	return s.MaxVersion
}

// older returns the other versions that the plugin supports.
func (s *Subject) older() []string {
	return slices.DeleteFunc(spec.VersionsFrom(s.minVersion()), func(v string) bool { return spec.AtLeast(v, s.newest()) })
}

// delegate returns the type of the IPAM plugin that the configuration names.
func (s *Subject) delegate() string {
	var ipam struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(s.Conf["ipam"], &ipam) // a configuration may have another ipam, or none
	return ipam.Type
}

// merge returns base with the keys of over added. A null in over removes the key.
func merge(base, over Object) Object {
	out := Object{}
	maps.Copy(out, base)
	maps.Copy(out, over)
	maps.DeleteFunc(out, func(k string, _ json.RawMessage) bool { return string(over[k]) == "null" })
	return out
}
