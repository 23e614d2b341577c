// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
)

// TableName is the name of both of our tables, inet and bridge.
const TableName = "patchbay"

// The sets and maps. Those with a 4 or a 6 exist once for each family.
const (
	SetSchema = "schema" // map: 0 -> number of the schema; of type inet_service, which nft reads in one byte order everywhere
	SetOwners = "owners" // owner key; one element for each attachment that portmap has others for

	SetPorts4     = "ports4"     // map: protocol . host port -> address . port
	SetPorts6     = "ports6"     //
	SetHostPorts4 = "hostports4" // map: host address . protocol . host port -> address . port
	SetHostPorts6 = "hostports6" //
	SetMasqAll4   = "masqall4"   // container address all of whose published traffic is masqueraded
	SetMasqAll6   = "masqall6"   //

	SetMasqueraded4 = "masqueraded4" // container address: masqueraded on its way out, but for samenet
	SetMasqueraded6 = "masqueraded6" //

	// The sets of whole networks. Schema 1 had them for every network, so attachments of
	// schema 1 are still served and removed; see networks.go.
	SetHairpin4 = "hairpin4" // from . to: published traffic that is masqueraded (schema 1)
	SetHairpin6 = "hairpin6" //
	SetMasq4    = "masq4"    // from . to: masqueraded
	SetMasq6    = "masq6"    //
	SetNoMasq4  = "nomasq4"  // from . to: exceptions from masq
	SetNoMasq6  = "nomasq6"  //

	SetIsolation = "isolation" // bridges that do not forward to each other
	SetBridgeOK  = "bridgeok"  // bridge . bridge: exceptions from isolation
	SetApart     = "apart"     // bridge . bridge: no exception, whatever network has one
	SetInternal  = "internal"  // bridges that do not forward at all
	SetInside    = "inside"    // bridge . bridge: frames between ports of such a bridge

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
)

// datatype returns the library's type.
func (f field) datatype() nftables.SetDatatype {
	return [...]nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr, nftables.TypeInetProto,
		nftables.TypeInetService, nftables.TypeIFName, nftables.TypeEtherAddr}[f]
}

// size is the field's length in a key or data of one field.
func (f field) size() int { return [...]int{4, 16, 1, 2, 16, 6}[f] }

// padded is its length in a concatenation: whole registers of 4 bytes.
func (f field) padded() int { return (f.size() + 3) &^ 3 }

// setSpec describes one set or map.
type setSpec struct {
	name     string
	family   nftables.TableFamily
	key      []field
	data     []field // not empty: a map
	interval bool    // network level: elements are ranges
	length   int     // of the prefix in the key, in a set for one length
}

// exclusive reports that an element of another owner is refused rather than replaced, unless a
// decide function allows it: adding a published port does not take it over.
func (s setSpec) exclusive() bool { return len(s.data) > 0 }

// inetSets lists the sets of `inet patchbay` in the order nft prints them.
func inetSets() []string {
	return []string{SetSchema, SetOwners, SetPorts4, SetPorts6, SetHostPorts4, SetHostPorts6, SetMasqAll4, SetMasqAll6, SetSNAT4, SetSNAT6,
		SetMasqueraded4, SetMasqueraded6, SetHairpin4, SetHairpin6, SetMasq4, SetMasq6, SetNoMasq4, SetNoMasq6, SetIsolation, SetBridgeOK, SetApart,
		SetInternal, SetInside, SetLocalNet}
}

// bridgeSets lists the sets of `bridge patchbay`.
func bridgeSets() []string { return []string{SetSchema, SetSpoofChecked, SetSpoofAllowed} }

// specOf finds a set by name. The maps of a network's conditions are named
// "ports4_<id>" and look like "ports4"; the sets for one length are named
// "samenet4_24".
func specOf(name string) (spec setSpec, ok bool) {
	kind, suffix, conditional := strings.Cut(name, "_")
	spec = setSpec{name: name, family: nftables.TableFamilyINet}
	switch kind {
	case SetOwners:
		spec.key = []field{fieldIfName}
	case SetPorts4:
		spec.key, spec.data = []field{fieldProto, fieldPort}, []field{fieldIPv4, fieldPort}
	case SetPorts6:
		spec.key, spec.data = []field{fieldProto, fieldPort}, []field{fieldIPv6, fieldPort}
	case SetHostPorts4:
		spec.key, spec.data = []field{fieldIPv4, fieldProto, fieldPort}, []field{fieldIPv4, fieldPort}
	case SetHostPorts6:
		spec.key, spec.data = []field{fieldIPv6, fieldProto, fieldPort}, []field{fieldIPv6, fieldPort}
	case SetSameNet4, SetSameNet6, SetNeighbours4, SetNeighbours6:
		return withinSpec(spec, kind, suffix)
	case SetMasqAll4, SetMasqueraded4:
		spec.key = []field{fieldIPv4}
	case SetMasqAll6, SetMasqueraded6:
		spec.key = []field{fieldIPv6}
	case SetSNAT4:
		spec.key = []field{fieldIPv4, fieldProto, fieldPort}
	case SetSNAT6:
		spec.key = []field{fieldIPv6, fieldProto, fieldPort}
	case SetSpoofChecked:
		spec.family, spec.key = nftables.TableFamilyBridge, []field{fieldIfName}
	case SetSpoofAllowed:
		spec.family, spec.key = nftables.TableFamilyBridge, []field{fieldIfName, fieldEther}
	default:
		spec, ok = networkSpec(spec)
		return spec, ok && !conditional
	}
	return spec, !conditional || spec.exclusive()
}

// networkSpec finds the sets of networks.
func networkSpec(spec setSpec) (setSpec, bool) {
	switch spec.name {
	case SetHairpin4, SetMasq4, SetNoMasq4:
		spec.key, spec.interval = []field{fieldIPv4, fieldIPv4}, true
	case SetHairpin6, SetMasq6, SetNoMasq6:
		spec.key, spec.interval = []field{fieldIPv6, fieldIPv6}, true
	case SetIsolation, SetInternal, SetLocalNet:
		spec.key = []field{fieldIfName}
	case SetBridgeOK, SetApart, SetInside:
		spec.key = []field{fieldIfName, fieldIfName}
	default:
		return spec, false
	}
	return spec, true
}

// schemaSpec is the one map that both tables have.
func schemaSpec(f nftables.TableFamily) setSpec {
	return setSpec{name: SetSchema, family: f, key: []field{fieldPort}, data: []field{fieldPort}}
}

// set returns the library's form, in a table of the set's family.
func (s setSpec) set() *nftables.Set {
	set := &nftables.Set{
		Table:         s.table(),
		Name:          s.name,
		KeyType:       concat(s.key),
		Concatenation: len(s.key) > 1,
		Interval:      s.interval,
		HasTimeout:    s.name != SetSchema, // so that elements can expire
		IsMap:         len(s.data) > 0,
		KeyByteOrder:  binaryutil.BigEndian,
	}
	if s.key[0] == fieldIfName {
		set.KeyByteOrder = binaryutil.NativeEndian
	}
	if set.IsMap {
		set.DataType = concat(s.data)
	}
	return set
}

func (s setSpec) table() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: s.family}
}

// concat joins types as the library does: each part padded to 4 bytes, unless
// there is only one.
func concat(fields []field) nftables.SetDatatype {
	if len(fields) == 1 {
		return fields[0].datatype()
	}
	types := make([]nftables.SetDatatype, len(fields))
	for i, f := range fields {
		types[i] = f.datatype()
	}
	return nftables.MustConcatSetType(types...)
}
