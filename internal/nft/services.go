// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
)

// ServicesTable is the name of the table of Kubernetes' Services, in the family inet. Package internal/services/enforce fills it. It is a
// table of its own: it has hundreds of thousands of elements that nobody who lists the others wants to see, and its removal
// ends all Services at once.
//
// It has sets, data maps and chains, whatever Services there are. <f> is 4 or 6. Each set of frontends whose name may begin with
// "np" exists twice: with the key address . protocol . port, and for node ports with protocol . port.
//
//	set vips<f>, nodeaddrs<f>, clusterips<f>     addresses that have frontends, node ports, or nothing else
//	set cidrs<f>, pods<f>, keeping<f>            ranges of ServiceCIDRs, of pods, and of clients whose address is kept
//	set hairpin<f>                               address . the same address: who may come back to itself
//	map [np]one<f>, [np]outsideone<f>            frontend -> its only endpoint
//	set [np]class<f>_<n>, [np]outsideclass<f>_<n> frontends with n/2+1 to n endpoints
//	map [np]many<f>_<n>, [np]outsidemany<f>_<n>  frontend . slot -> endpoint
//	set [np]outside<f>                           frontends that show others something else than the node and its pods
//	set drop<f>, [np]reject<f>, [np]masq<f>      frontends that drop, refuse, or hide the client
//	set ranged<f>, allowed<f>_<length>           frontends with ranges of sources, and frontend . masked source
//	set [np]sticky<f>_<seconds>                  frontends with affinity
//	map affinity<f>                              client . frontend -> endpoint; packets write it
//	set revision                                 layout . revision: each transaction of the agent changes it
//
// What has a number behind its name exists while a Service needs it, with its rules: an empty set would cost the first
// packet of each connection a lookup. servicerules.go has the chains.
const ServicesTable = "patchbay_services"

// servicesLayout is the number of the layout of the table. If another program's layout is there, the agent makes the table anew.
const servicesLayout = 1

// mostMemories is how many clients with affinity the kernel remembers. Without a limit, packets could fill its memory.
const mostMemories = 1_000_000

const (
	setRevision = "revision"
	setAffinity = "affinity"
	setMany     = "many"
	setClass    = "class"
	setOutMany  = "outsidemany"
	setOutClass = "outsideclass"
	setAllowed  = "allowed"
	setSticky   = "sticky"
)

// serviceKinds has the kinds of sets, and the key of each. A frontend is fieldProto, and loses its address in sets of node ports.
var serviceKinds = []struct {
	name  string
	key   string // of a: address, f: frontend, s: slot
	data  bool   // a map to endpoints
	sized bool   // the name has a number
	ports bool   // also for node ports
	rangd bool   // elements are ranges
}{
	{name: "pods", key: "a", rangd: true},
	{name: "keeping", key: "a", rangd: true},
	{name: "cidrs", key: "a", rangd: true},
	{name: "hairpin", key: "aa"},
	{name: "clusterips", key: "a"},
	{name: "vips", key: "a"},
	{name: "nodeaddrs", key: "a"},
	{name: "ranged", key: "f"},
	{name: setAllowed, key: "fa", sized: true},
	{name: setSticky, key: "f", sized: true, ports: true},
	{name: setAffinity, key: "af", data: true},
	{name: "masq", key: "f", ports: true},
	{name: "outside", key: "f", ports: true},
	{name: "outsideone", key: "f", data: true, ports: true},
	{name: setOutClass, key: "f", sized: true, ports: true},
	{name: setOutMany, key: "fs", data: true, sized: true, ports: true},
	{name: "drop", key: "f"}, // only a cluster IP drops for everybody
	{name: "reject", key: "f", ports: true},
	{name: "one", key: "f", data: true, ports: true},
	{name: setClass, key: "f", sized: true, ports: true},
	{name: setMany, key: "fs", data: true, sized: true, ports: true},
}

// serviceSet returns the specification of a set of the table of Services by its name.
func serviceSet(name string) (s setSpec, ok bool) {
	if name == setRevision {
		return setSpec{name: name, family: nftables.TableFamilyINet, level: ofServices, key: fields{fieldPort, fieldPort}}, true
	}
	for _, k := range serviceKinds {
		rest, ports := name, false
		if k.ports {
			rest, ports = strings.CutPrefix(name, "np")
		}
		if rest, ok = strings.CutPrefix(rest, k.name); !ok || rest == "" || rest[0] != '4' && rest[0] != '6' {
			continue
		}
		s = setSpec{name: name, family: nftables.TableFamilyINet, level: ofServices, interval: k.rangd, learned: k.name == setAffinity}
		addr := fieldIPv4
		if rest[0] == '6' {
			addr = fieldIPv6
		}
		for _, part := range k.key {
			s.key = append(s.key, partOf(part, addr, ports)...)
		}
		if k.data {
			s.data = fields{addr, fieldPort}
		}
		return s, s.setSize(rest[1:], k.sized)
	}
	return setSpec{}, false
}

// partOf returns the fields of a part of a key.
func partOf(part rune, addr field, ports bool) fields {
	switch {
	case part == 'a':
		return fields{addr}
	case part == 's':
		return fields{fieldSlot}
	case ports:
		return fields{fieldProto, fieldPort}
	}
	return fields{addr, fieldProto, fieldPort}
}

// setSize reads the number behind a set's name.
func (s *setSpec) setSize(text string, sized bool) bool {
	number, found := strings.CutPrefix(text, "_")
	if !sized || !found {
		return !sized && text == ""
	}
	n, err := strconv.Atoi(number)
	s.length = n
	return err == nil && n > 0 && strconv.Itoa(n) == number
}

// kindOfService returns a set's name without "np", family and number.
func kindOfService(name string) string {
	name, _, _ = strings.Cut(name, "_")
	return strings.TrimPrefix(name[:len(name)-1], "np")
}

// ServiceSets returns the names of the sets that the table always has, sorted.
func ServiceSets() (names []string) {
	for _, k := range serviceKinds {
		if k.sized {
			continue
		}
		for _, family := range []string{"4", "6"} {
			names = append(names, k.name+family)
			if k.ports {
				names = append(names, "np"+k.name+family)
			}
		}
	}
	slices.Sort(names)
	return append(names, setRevision)
}

// ServiceLayout is what the table has besides elements: the sets that it always has, and those of some sizes.
type ServiceLayout struct{ sized map[string]setSpec }

// LayoutOfServices returns the layout with these sets. Those that the table always has may be among them. For a class it has the set and the map.
func LayoutOfServices(sets ...string) (ServiceLayout, error) {
	l := ServiceLayout{make(map[string]setSpec)}
	for _, name := range sets {
		s, ok := serviceSet(name)
		if !ok {
			return l, fmt.Errorf("table inet %s has no set %q", ServicesTable, name)
		}
		if s.length > 0 {
			l.sized[name] = s
		}
		for _, both := range [][2]string{{setMany, setClass}, {setClass, setMany}, {setOutMany, setOutClass}, {setOutClass, setOutMany}} {
			if kindOfService(name) == both[0] {
				other := strings.Replace(name, both[0], both[1], 1)
				l.sized[other], _ = serviceSet(other)
			}
		}
	}
	return l, nil
}

// Has reports whether the layout has a set.
func (l ServiceLayout) Has(set string) bool {
	_, ok := l.sized[set]
	return ok || slices.Contains(ServiceSets(), set)
}

// Equal reports whether two layouts have the same sets.
func (l ServiceLayout) Equal(o ServiceLayout) bool {
	return maps.EqualFunc(l.sized, o.sized, func(a, b setSpec) bool { return a.name == b.name })
}

// With returns a layout that has more sets.
func (l ServiceLayout) With(sets ...string) (ServiceLayout, error) {
	return LayoutOfServices(append(slices.Collect(maps.Keys(l.sized)), sets...)...)
}

// sets returns all sets of the layout.
func (l ServiceLayout) sets() (list []setSpec) {
	for _, name := range ServiceSets() {
		s, _ := serviceSet(name)
		list = append(list, s)
	}
	for _, name := range slices.Sorted(maps.Keys(l.sized)) {
		list = append(list, l.sized[name])
	}
	return list
}

// of returns the sets of a kind, as "many" or "npmany", and of a family, the smallest first.
func (l ServiceLayout) of(kind string, v6 bool) (list []setSpec) {
	for name, s := range l.sized {
		if strings.HasPrefix(name, kind+familyDigit(v6)+"_") {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b setSpec) int { return cmp.Compare(a.length, b.length) })
	return list
}

func familyDigit(v6 bool) string {
	if v6 {
		return "6"
	}
	return "4"
}
