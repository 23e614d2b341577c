// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package netmap draws the networks of a node: as one HTML page that needs nothing else, as a drawing in SVG, or as
// JSON. All three come from one model (Map), which the caller fills. The package reads nothing and judges nothing: what
// is wrong are the findings of the commands doctor, check and ps.
//
// The page is a table for each network, below a drawing of the networks. There is no layout engine: boxes stand
// in columns (arrange), and what belongs to something stands inside of it, so no line crosses a box. The page works without
// JavaScript; a script adds the search. Names come from users, so put escapes each text, and the page's own policy
// (CSP) forbids every other script, style and address.
package netmap

import (
	"time"

	"github.com/patchbay-net/patchbay/cli/doctor"
)

// Map is what is known about the networks of a node.
type Map struct {
	Node     string           `json:"node"` // the host's name
	Made     time.Time        `json:"made"`
	Findings []doctor.Finding `json:"findings"` // about the node, or about several networks
	Networks []Network        `json:"networks"`
	Hosts    []Host           `json:"hosts,omitempty"`
}

// Network is a network that is configured, or that an attachment names.
type Network struct {
	Name        string           `json:"name"`
	Driver      string           `json:"driver,omitempty"` // the plugin that makes the interface
	Link        string           `json:"link,omitempty"`   // on the host: the bridge, or the parent interface
	Subnets     []string         `json:"subnets,omitempty"`
	Plugins     []string         `json:"plugins,omitempty"`
	File        string           `json:"file,omitempty"` // empty if the network is built in, or has no file of ours
	Findings    []doctor.Finding `json:"findings,omitempty"`
	Attachments []Attached       `json:"attachments"`
}

// Attached is one interface of a container.
type Attached struct {
	ContainerID string           `json:"containerID"`
	IfName      string           `json:"ifname"`
	Name        string           `json:"name,omitempty"` // that podman gave the container
	Pod         string           `json:"pod,omitempty"`  // of Kubernetes: "namespace/name"
	NetNS       string           `json:"netns,omitempty"`
	Process     string           `json:"process,omitempty"` // the first in the namespace: "12 nginx"
	Addresses   []string         `json:"addresses,omitempty"`
	MAC         string           `json:"mac,omitempty"`
	Ports       []string         `json:"ports,omitempty"`     // published: "0.0.0.0:8080->80/tcp"
	HostLinks   []string         `json:"hostLinks,omitempty"` // its ends on the host
	Policies    []string         `json:"policies,omitempty"`  // network policies that judge its packets
	Findings    []doctor.Finding `json:"findings,omitempty"`
}

// Host is another machine, to which this one has routes for containers.
type Host struct {
	Address string   `json:"address,omitempty"` // empty in WireGuard, whose routes have none
	Link    string   `json:"link,omitempty"`
	Blocks  []string `json:"blocks"` // the addresses of its containers
}

// shortID is how many characters of an id are shown where it must fit, as ps does.
const shortID = 12

// title is what people call the container.
func (a *Attached) title() string {
	switch {
	case a.Pod != "":
		return a.Pod
	case a.Name != "":
		return a.Name
	}
	return a.ContainerID[:min(len(a.ContainerID), shortID)]
}

// state is how bad the findings about something are.
type state struct{ broken, warned int }

func (s *state) add(list []doctor.Finding) {
	for _, f := range list {
		if f.Level == doctor.Problem {
			s.broken++
		} else {
			s.warned++
		}
	}
}

// class is the class of the page's style, or "" if nothing was found.
func (s state) class() string {
	switch {
	case s.broken > 0:
		return "bad"
	case s.warned > 0:
		return "warn"
	}
	return ""
}

func (a *Attached) state() (s state) {
	s.add(a.Findings)
	return s
}

// state counts each attachment once, however much is wrong with it, and each finding about the network itself.
func (n *Network) state() (s state) {
	s.add(n.Findings)
	for i := range n.Attachments {
		switch n.Attachments[i].state().class() {
		case "bad":
			s.broken++
		case "warn":
			s.warned++
		}
	}
	return s
}

// attachments returns how many attachments there are, and how many of them are broken.
func (m *Map) attachments() (all, broken int) {
	for _, n := range m.Networks {
		all += len(n.Attachments)
		for i := range n.Attachments {
			if n.Attachments[i].state().broken > 0 {
				broken++
			}
		}
	}
	return all, broken
}
