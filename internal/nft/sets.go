// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
)

// TableName is the name of our two tables, in the families inet and bridge.
const TableName = "patchbay"

// These are the sets and maps. A name that ends in 4 or 6 is for one address family.
const (
	SetSchema = "schema" // map: 0 -> number of the schema; its type inet_service has the same byte order on every machine
	SetOwners = "owners" // owner key; one element per attachment for which portmap has elements

	SetPorts4     = "ports4"     // map: protocol . host port -> address . port
	SetPorts6     = "ports6"     //
	SetHostPorts4 = "hostports4" // map: host address . protocol . host port -> address . port
	SetHostPorts6 = "hostports6" //
	SetMasqAll4   = "masqall4"   // container address: masquerade traffic to all its published ports
	SetMasqAll6   = "masqall6"   //

	SetSNAT4 = "snat4" // container address . protocol . host port: Neighbours and MasqAll apply to this port
	SetSNAT6 = "snat6" //

	SetMasqueraded4 = "masqueraded4" // container address: masquerade packets that leave the host, except to addresses in samenet
	SetMasqueraded6 = "masqueraded6" //

	SetEgress4 = "egress4" // map: container address -> the host's address that replaces it, instead of the one that masquerade takes
	SetEgress6 = "egress6" //

	SetExempt4 = "exempt4" // from . to: exceptions from masqueraded that belong to a network, not to an attachment
	SetExempt6 = "exempt6" //

	SetAnyPort4 = "anyport4" // from . to: masqueraded packets get a random source port
	SetAnyPort6 = "anyport6" //

	SetIsolation = "isolation" // bridges that do not forward to each other
	SetBridgeOK  = "bridgeok"  // bridge . bridge: exceptions from isolation
	SetApart     = "apart"     // bridge . bridge: no exception, even if another network has one
	SetInternal  = "internal"  // bridges for which nothing is forwarded, except within a span (spans.go)
	SetInside    = "inside"    // bridge . bridge: frames between two ports of an internal bridge

	SetLocalNet = "localnet" // interfaces with route_localnet; packets from them cannot reach 127.0.0.0/8

	SetPolicy = "policies" // map: 0 -> revision of the network policies that package internal/policy/enforce loaded, 1 -> version of its base chains

	// An ADD closes a pod's addresses in these sets, until package internal/policy/enforce judges the pod.
	SetClosedIn4  = "policy_closedin4"  // address: no new connection to it
	SetClosedIn6  = "policy_closedin6"  //
	SetClosedOut4 = "policy_closedout4" // address: no new connection from it
	SetClosedOut6 = "policy_closedout6" //
	SetOwnSource  = "policy_ownsource"  // link: sends only from its own addresses (sources.go)

	SetSpoofChecked = "checked" // table bridge: host interfaces whose source MAC is checked
	SetSpoofAllowed = "allowed" // table bridge: host interface . source MAC
)

// field is one part of a key or of data.
type field int

const (
	fieldIPv4 field = iota
	fieldIPv6
	fieldProto
	fieldPort
	fieldIfName
	fieldEther
	fieldSlot // a number that a rule draws
)

// datatype returns the library's type.
func (f field) datatype() nftables.SetDatatype {
	return [...]nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr, nftables.TypeInetProto,
		nftables.TypeInetService, nftables.TypeIFName, nftables.TypeEtherAddr, nftables.TypeInteger}[f]
}

// size returns the length of the field if it is the only field of a key or of data.
func (f field) size() int { return [...]int{4, 16, 1, 2, 16, 6, 4}[f] }

// padded returns the length of the field among several fields: a multiple of 4 bytes.
func (f field) padded() int { return (f.size() + 3) &^ 3 }

// level says whether the elements of a set belong to attachments or to networks.
type level int

const (
	ofAttachments level = iota
	ofNetworks
	ofLength   // elements of attachments, in one set on demand per prefix length: see within.go
	ofBlocks   // of networks, in one set on demand per length of a host's block: see spans.go
	ofPolicy   // of package internal/policy/enforce, which also makes the set: see policy.go
	ofFlows    // of networks, in a set that exists only if a network asks for it: see fastpath.go
	ofTunnel   // of a mesh, which also makes the set: see tunnel.go
	ofServices // of the table of Services: see services.go
)

// setSpec describes one set or map.
type setSpec struct {
	name     string
	family   nftables.TableFamily
	level    level
	key      fields
	data     fields // not empty for a map
	interval bool   // elements are ranges of networks
	onDemand bool   // its first element makes the set with the rules that look it up: see ondemand.go
	length   int    // prefix length, for a set for one length; of Services another size
	learned  bool   // rules add elements
	most     uint32 // of elements that rules add; 0: the kernel's default
	keep     time.Duration
	inside   bool // the last field of the key is raw bytes after the header of ICMP: see typeof.go
}

// fields are the fields of a key or of data.
type fields = []field

// setSpecs lists the sets in the order in which nft prints them, without the schema map.
var setSpecs = []setSpec{
	{name: SetOwners, family: nftables.TableFamilyINet, key: fields{fieldIfName}},
	{name: SetPorts4, family: nftables.TableFamilyINet, key: fields{fieldProto, fieldPort}, data: fields{fieldIPv4, fieldPort}},
	{name: SetPorts6, family: nftables.TableFamilyINet, key: fields{fieldProto, fieldPort}, data: fields{fieldIPv6, fieldPort}},
	{name: SetHostPorts4, family: nftables.TableFamilyINet, key: fields{fieldIPv4, fieldProto, fieldPort}, data: fields{fieldIPv4, fieldPort}},
	{name: SetHostPorts6, family: nftables.TableFamilyINet, key: fields{fieldIPv6, fieldProto, fieldPort}, data: fields{fieldIPv6, fieldPort}},
	{name: SetMasqAll4, family: nftables.TableFamilyINet, key: fields{fieldIPv4}, onDemand: true},
	{name: SetMasqAll6, family: nftables.TableFamilyINet, key: fields{fieldIPv6}, onDemand: true},
	{name: SetSNAT4, family: nftables.TableFamilyINet, key: fields{fieldIPv4, fieldProto, fieldPort}},
	{name: SetSNAT6, family: nftables.TableFamilyINet, key: fields{fieldIPv6, fieldProto, fieldPort}},
	{name: SetMasqueraded4, family: nftables.TableFamilyINet, key: fields{fieldIPv4}},
	{name: SetMasqueraded6, family: nftables.TableFamilyINet, key: fields{fieldIPv6}},
	{name: SetEgress4, family: nftables.TableFamilyINet, key: fields{fieldIPv4}, data: fields{fieldIPv4}},
	{name: SetEgress6, family: nftables.TableFamilyINet, key: fields{fieldIPv6}, data: fields{fieldIPv6}},
	{name: SetExempt4, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIPv4, fieldIPv4}, interval: true, onDemand: true},
	{name: SetExempt6, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIPv6, fieldIPv6}, interval: true, onDemand: true},
	{name: SetAnyPort4, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIPv4, fieldIPv4}, interval: true, onDemand: true},
	{name: SetAnyPort6, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIPv6, fieldIPv6}, interval: true, onDemand: true},
	{name: SetIsolation, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIfName}, onDemand: true},
	{name: SetBridgeOK, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIfName, fieldIfName}},
	{name: SetApart, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIfName, fieldIfName}},
	{name: SetInternal, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIfName}, onDemand: true},
	{name: SetInside, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIfName, fieldIfName}},
	{name: SetLocalNet, family: nftables.TableFamilyINet, level: ofNetworks, key: fields{fieldIfName}},
	{name: SetSameNet4, family: nftables.TableFamilyINet, level: ofLength, key: fields{fieldIPv4, fieldIPv4}},
	{name: SetSameNet6, family: nftables.TableFamilyINet, level: ofLength, key: fields{fieldIPv6, fieldIPv6}},
	{name: SetNeighbours4, family: nftables.TableFamilyINet, level: ofLength, key: fields{fieldIPv4, fieldIPv4}},
	{name: SetNeighbours6, family: nftables.TableFamilyINet, level: ofLength, key: fields{fieldIPv6, fieldIPv6}},
	{name: SetSpan4, family: nftables.TableFamilyINet, level: ofBlocks, key: fields{fieldIPv4, fieldIPv4}, interval: true},
	{name: SetSpan6, family: nftables.TableFamilyINet, level: ofBlocks, key: fields{fieldIPv6, fieldIPv6}, interval: true},
	{name: SetDivided4, family: nftables.TableFamilyINet, level: ofBlocks, key: fields{fieldIPv4, fieldIPv4}, interval: true},
	{name: SetDivided6, family: nftables.TableFamilyINet, level: ofBlocks, key: fields{fieldIPv6, fieldIPv6}, interval: true},
	{name: SetPolicy, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldPort}, data: fields{fieldPort}},
	{name: SetClosedIn4, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIPv4}},
	{name: SetClosedIn6, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIPv6}},
	{name: SetClosedOut4, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIPv4}},
	{name: SetClosedOut6, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIPv6}},
	{name: SetOwnSource, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName}},
	{name: SetSource4, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName, fieldIPv4}},
	{name: SetSource6, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName, fieldIPv6}},
	{name: setInside4, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName, fieldIPv4}, inside: true},
	{name: setInside6, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName, fieldIPv6}, inside: true},
	{name: setRouters, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName}, learned: true},
	{name: setForged4, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName, fieldIPv4, fieldIPv4}, learned: true, most: mostFlows, keep: toldFor},
	{name: setForged6, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName, fieldIPv6, fieldIPv6}, learned: true, most: mostFlows, keep: toldFor},
	{name: setForgedRate, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName}, learned: true, most: mostPods, keep: rateFor},
	{name: setForgedOnce, family: nftables.TableFamilyINet, level: ofPolicy, key: fields{fieldIfName}, learned: true, most: mostPods, keep: toldFor},
	{name: SetFastPath, family: nftables.TableFamilyINet, level: ofFlows, key: fields{fieldIfName, fieldIfName}},
	{name: SetSpoofChecked, family: nftables.TableFamilyBridge, key: fields{fieldIfName}},
	{name: SetSpoofAllowed, family: nftables.TableFamilyBridge, key: fields{fieldIfName, fieldEther}},
	{name: SetPort, family: nftables.TableFamilyBridge, level: ofPolicy, key: fields{fieldIfName}},
	{name: SetPort4, family: nftables.TableFamilyBridge, level: ofPolicy, key: fields{fieldIfName, fieldIPv4}},
	{name: SetPort6, family: nftables.TableFamilyBridge, level: ofPolicy, key: fields{fieldIfName, fieldIPv6}},
	{name: SetPortIn, family: nftables.TableFamilyBridge, level: ofPolicy, key: fields{fieldIfName}},
	{name: SetPortOut, family: nftables.TableFamilyBridge, level: ofPolicy, key: fields{fieldIfName}},
	{name: setPortIns4, family: nftables.TableFamilyBridge, level: ofPolicy, key: fields{fieldIfName, fieldIPv4}, inside: true},
	{name: setPortIns6, family: nftables.TableFamilyBridge, level: ofPolicy, key: fields{fieldIfName, fieldIPv6}, inside: true},
}

// inetSets lists the sets of `inet patchbay` that a new table has, in the order in which nft prints them.
func inetSets() []string {
	return append([]string{SetSchema}, setsWhere(func(s setSpec) bool { return s.family == nftables.TableFamilyINet && s.level < ofLength && !s.onDemand })...)
}

// bridgeSets lists the sets of `bridge patchbay`.
func bridgeSets() []string {
	return append([]string{SetSchema}, setsWhere(func(s setSpec) bool { return s.family == nftables.TableFamilyBridge && s.level < ofLength })...)
}

// setsWhere returns the names of the sets for which is returns true.
func setsWhere(is func(setSpec) bool) (names []string) {
	for _, s := range setSpecs {
		if is(s) {
			names = append(names, s.name)
		}
	}
	return names
}

// exclusive reports whether another owner's element stays when this owner adds the same key. Published
// ports are exclusive: adding a port does not replace another owner's, unless a decide function allows
// it. Only the maps of published ports have an address and a port as data.
func (s setSpec) exclusive() bool { return len(s.data) > 1 }

// specOf returns the specification of a set. The maps of a network's conditions have names
// like "ports4_<id>" and the specification of "ports4". The sets for one prefix length have
// names like "samenet4_24" and "span4_24".
func specOf(name string) (spec setSpec, ok bool) {
	if ofTunnels(name) {
		return tunnelSet(name)
	}
	kind, suffix, more := strings.Cut(name, "_")
	for _, s := range setSpecs {
		if s.level == ofPolicy && s.name == name {
			return s, true
		}
		if s.name != kind {
			continue
		}
		s.name = name
		if s.level != ofLength && s.level != ofBlocks {
			return s, !more || s.exclusive()
		}
		s.onDemand = true
		return s, s.setLength(suffix)
	}
	return setSpec{name: name, family: nftables.TableFamilyINet}, false
}

// setLength makes the set one for a prefix length, which its name tells.
func (s *setSpec) setLength(text string) (ok bool) {
	n, err := strconv.Atoi(text)
	s.length = n
	return err == nil && n > 0 && n <= 8*s.key[len(s.key)-1].size() && strconv.Itoa(n) == text
}

// schemaSpec returns the specification of the schema map, which both tables have.
func schemaSpec(f nftables.TableFamily) setSpec {
	return setSpec{name: SetSchema, family: f, key: fields{fieldPort}, data: fields{fieldPort}}
}

// set returns the set in the library's type.
func (s setSpec) set() *nftables.Set {
	set := &nftables.Set{
		Table:         s.table(),
		Name:          s.name,
		KeyType:       concat(s.key),
		Concatenation: len(s.key) > 1,
		Interval:      s.interval,
		HasTimeout:    s.name != SetSchema && s.level != ofServices || s.learned, // elements can expire
		Dynamic:       s.learned,
		IsMap:         len(s.data) > 0,
		KeyByteOrder:  binaryutil.BigEndian,
	}
	if s.key[0] == fieldIfName {
		set.KeyByteOrder = binaryutil.NativeEndian
	}
	if set.IsMap {
		set.DataType = concat(s.data)
	}
	if s.learned && s.level == ofServices {
		set.Size = mostMemories
	}
	if s.most > 0 {
		set.Size, set.Timeout = s.most, s.keep
	}
	return set
}

func (s setSpec) table() *nftables.Table {
	return &nftables.Table{Name: s.tableName(), Family: s.family}
}

func (s setSpec) tableName() string {
	if s.level == ofServices {
		return ServicesTable
	}
	return TableName
}

// concat joins types as the library does. Each part is padded to 4 bytes, unless there is only
// one part.
func concat(parts fields) nftables.SetDatatype {
	if len(parts) == 1 {
		return parts[0].datatype()
	}
	types := make([]nftables.SetDatatype, len(parts))
	for i, f := range parts {
		types[i] = f.datatype()
	}
	return nftables.MustConcatSetType(types...)
}
