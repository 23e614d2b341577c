// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/spec"
)

// element is a map of the JSON form (§4.1.2). A pointer tells an empty value from a missing key. Keys that are not here are
// ignored: foreign ones have a domain, and old manifests have keys that earlier versions knew.
type element struct {
	Name         string                     `json:"name"`
	Namespace    string                     `json:"namespace"`
	Interface    *string                    `json:"interface"`
	OldInterface *string                    `json:"interfaceRequest"` // Multus' former key
	IPs          *[]string                  `json:"ips"`
	MAC          *string                    `json:"mac"`
	Args         map[string]json.RawMessage `json:"cni-args"`
	Ports        *[]portMapping             `json:"portMappings"`
	Bandwidth    *bandwidth                 `json:"bandwidth"`
	DefaultRoute *[]string                  `json:"default-route"`
	GUID         *string                    `json:"infiniband-guid"`
	IPAMClaim    string                     `json:"ipam-claim-reference"`
	DeviceID     string                     `json:"deviceID"` // Multus'
}

type portMapping struct {
	HostPort      int        `json:"hostPort"`
	ContainerPort int        `json:"containerPort"`
	Protocol      string     `json:"protocol"`
	HostIP        netip.Addr `json:"hostIP"`
}

type bandwidth struct {
	IngressRate  *uint64 `json:"ingressRate"`
	IngressBurst *uint64 `json:"ingressBurst"`
	EgressRate   *uint64 `json:"egressRate"`
	EgressBurst  *uint64 `json:"egressBurst"`
}

// parseJSON reads a list of maps.
func parseJSON(annotation, podNamespace string) (list []Selection, err error) {
	var raw []json.RawMessage
	if err := lightjson.Unmarshal([]byte(annotation), &raw); err != nil {
		return nil, fmt.Errorf("want a list of objects: %w", err)
	}
	for i, data := range raw {
		var e element
		err := lightjson.Unmarshal(data, &e)
		s := Selection{Namespace: e.Namespace, Name: e.Name}
		if s.Namespace == "" {
			s.Namespace = podNamespace
		}
		if err == nil {
			err = e.into(&s)
		}
		if err != nil {
			return nil, fmt.Errorf("network %d, %.100q: %w", i+1, e.Name, err)
		}
		list = append(list, s)
	}
	return list, nil
}

// into validates an element.
func (e *element) into(s *Selection) error {
	if e.Name == "" {
		return errors.New("it has no name")
	}
	if !IsDefinition(s.Namespace, s.Name) {
		return fmt.Errorf("%.100q of namespace %.100q cannot be the name of an object", s.Name, s.Namespace)
	}
	if e.IPAMClaim != "" && e.IPs != nil {
		return errors.New("it has ips and ipam-claim-reference: leave out one of them")
	}
	s.Ask = Ask{Args: e.Args, IPAMClaim: e.IPAMClaim, DeviceID: e.DeviceID}
	for _, step := range []func(*Selection) error{e.interfaceInto, e.ipsInto, e.hardwareInto, e.portsInto, e.bandwidthInto, e.routesInto} {
		if err := step(s); err != nil {
			return err
		}
	}
	return nil
}

func (e *element) interfaceInto(s *Selection) error {
	for _, name := range []*string{e.OldInterface, e.Interface} {
		if name == nil {
			continue
		}
		if err := spec.ValidateNewIfName(*name); err != nil {
			return err
		}
		s.Interface = *name
	}
	return nil
}

// ipsInto reads addresses, with or without a prefix length (§4.1.2.1.3). A plugin may refuse a missing length.
func (e *element) ipsInto(s *Selection) error {
	if e.IPs == nil {
		return nil
	}
	if len(*e.IPs) == 0 {
		return errors.New("ips is empty: name an address, or leave the key out")
	}
	for _, text := range *e.IPs {
		if _, _, err := parseIP(text); err != nil {
			return err
		}
	}
	s.Ask.IPs = *e.IPs
	return nil
}

// parseIP returns an address and its prefix length, or -1 if it has none.
func parseIP(text string) (netip.Addr, int, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr().Unmap(), p.Bits(), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return a, 0, fmt.Errorf("%.60q in ips is no IP address: want one such as 10.1.0.7 or 10.1.0.7/16", text)
	}
	return a.Unmap(), -1, nil
}

// These are the lengths of hardware addresses, in bytes.
const (
	macLength  = 6
	guidLength = 8
)

func (e *element) hardwareInto(s *Selection) (err error) {
	if s.Ask.MAC, err = hardware("mac", e.MAC, macLength); err == nil {
		s.Ask.GUID, err = hardware("infiniband-guid", e.GUID, guidLength)
	}
	return err
}

func hardware(key string, text *string, length int) (string, error) {
	if text == nil {
		return "", nil
	}
	if a, err := net.ParseMAC(*text); err != nil || len(a) != length {
		return "", fmt.Errorf("%s %.60q: want %d bytes in hexadecimal, with ':' between them", key, *text, length)
	}
	return *text, nil
}

func (e *element) portsInto(s *Selection) error {
	if e.Ports == nil {
		return nil
	}
	if len(*e.Ports) == 0 {
		return errors.New("portMappings is empty: name a port, or leave the key out")
	}
	for _, p := range *e.Ports {
		protocol := strings.ToLower(p.Protocol)
		if protocol == "" {
			protocol = "tcp"
		}
		if !isPort(p.HostPort) || !isPort(p.ContainerPort) {
			return fmt.Errorf("portMappings: hostPort %d and containerPort %d must be from 1 to 65535", p.HostPort, p.ContainerPort)
		}
		if protocol != "tcp" && protocol != "udp" && protocol != "sctp" {
			return fmt.Errorf("portMappings: protocol %.60q: want TCP, UDP or SCTP", p.Protocol)
		}
		s.Ask.Ports = append(s.Ask.Ports, spec.PortMapping{
			HostPort: uint16(p.HostPort), ContainerPort: uint16(p.ContainerPort), Protocol: protocol, HostIP: p.HostIP,
		})
	}
	return nil
}

func isPort(n int) bool { return n >= 1 && n <= 65535 }

// bandwidthInto reads rates and bursts (§4.1.2.1.8). A plugin chooses a burst that is left out.
func (e *element) bandwidthInto(s *Selection) error {
	b := e.Bandwidth
	if b == nil {
		return nil
	}
	if *b == (bandwidth{}) {
		return errors.New("bandwidth is empty: name a rate, or leave the key out")
	}
	for _, value := range []*uint64{b.IngressRate, b.IngressBurst, b.EgressRate, b.EgressBurst} {
		if value != nil && *value == 0 {
			return errors.New("bandwidth: a rate or burst of 0 would let nothing pass: leave the key out")
		}
	}
	if b.IngressBurst != nil && b.IngressRate == nil || b.EgressBurst != nil && b.EgressRate == nil {
		return errors.New("bandwidth: a burst needs the rate of its direction")
	}
	s.Ask.Bandwidth = spec.Bandwidth{
		IngressRate: deref(b.IngressRate), IngressBurst: deref(b.IngressBurst), EgressRate: deref(b.EgressRate), EgressBurst: deref(b.EgressBurst),
	}
	return nil
}

func deref(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

// routesInto reads the gateways of default routes (§4.1.2.1.9). The list may be empty.
func (e *element) routesInto(s *Selection) error {
	if e.DefaultRoute == nil {
		return nil
	}
	s.Ask.DefaultRoute = []netip.Addr{}
	for _, text := range *e.DefaultRoute {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return fmt.Errorf("default-route %.60q: want the address of a gateway", text)
		}
		s.Ask.DefaultRoute = append(s.Ask.DefaultRoute, a.Unmap())
	}
	return nil
}
