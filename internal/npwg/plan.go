// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"encoding/json"

	"github.com/patchbay-net/patchbay/spec"
)

// Plan is everything that one ADD attaches, in its order. It is made before the first change, and has all that a later DEL, CHECK or
// GC needs: none of them looks a definition up.
type Plan struct {
	// Network, ContainerID and IfName are the names of the attachment in whose ADD the networks are attached, that of the pod's
	// default network.
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`

	Pod  Pod      `json:"pod"`
	Args string   `json:"args,omitempty"` // CNI_ARGS of the ADD
	Path []string `json:"path,omitempty"` // CNI_PATH of the ADD

	// Default is the result of the default network, in version Current of package spec.
	Default json.RawMessage `json:"default,omitempty"`

	Interfaces []Interface `json:"interfaces"`
}

// Pod names a pod as the runtime does. A static pod has another UID in the API.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// State is how far an attachment is. Once it is Attempted, something of it may exist.
type State string

// These are the states of an attachment.
const (
	Planned   State = ""
	Attempted State = "attempted"
	Done      State = "done"
)

// Interface is one further interface of a pod.
type Interface struct {
	Definition      string `json:"definition"` // namespace/name
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`

	Network      string            `json:"network"` // name of the CNI configuration
	IfName       string            `json:"ifname"`
	CNIVersion   string            `json:"cniVersion"`
	DisableCheck bool              `json:"disableCheck,omitempty"`
	Plugins      []json.RawMessage `json:"plugins"` // their configurations, with what Configure adds

	Ask    Ask             `json:"ask,omitzero"`
	State  State           `json:"state,omitempty"`
	Result json.RawMessage `json:"result,omitempty"` // in version CNIVersion, once it is Done
}

// Begun returns the attachments of which something may exist, the last one first.
func (p *Plan) Begun() (list []*Interface) {
	for i := len(p.Interfaces) - 1; i >= 0; i-- {
		if a := &p.Interfaces[i]; a.State != Planned {
			list = append(list, a)
		}
	}
	return list
}

// Complete reports whether everything is attached.
func (p *Plan) Complete() bool {
	for i := range p.Interfaces {
		if p.Interfaces[i].State != Done {
			return false
		}
	}
	return true
}

// result returns what the ADD returned, or nil.
func (a *Interface) result() (*spec.Result, error) {
	if len(a.Result) == 0 {
		return nil, nil
	}
	return spec.ParseResult(a.Result, a.CNIVersion)
}
