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
	SetOwners = "owners" // owner key; one element for each attachment that has others

	SetPorts4     = "ports4"     // map: protocol . host port -> address . port
	SetPorts6     = "ports6"     //
	SetHostPorts4 = "hostports4" // map: host address . protocol . host port -> address . port
	SetHostPorts6 = "hostports6" //
	SetMasqAll4   = "masqall4"   // container address all of whose published traffic is masqueraded
	SetMasqAll6   = "masqall6"   //

	SetHairpin4 = "hairpin4" // from . to: published traffic that is masqueraded
	SetHairpin6 = "hairpin6" //
	SetMasq4    = "masq4"    // from . to: masqueraded
	SetMasq6    = "masq6"    //
	SetNoMasq4  = "nomasq4"  // from . to: exceptions from masq
	SetNoMasq6  = "nomasq6"  //

	SetIsolation = "isolation" // bridges that do not forward to each other
	SetBridgeOK  = "bridgeok"  // bridge . bridge: exceptions from isolation

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
	interval bool    // network level: elements are ranges and are deleted
	timeout  bool    // attachment level: elements may be removed by expiry
}

// keyed says that elements belong to owners, so an element of another owner is
// refused rather than replaced: a port is not taken by asking for it.
func (s setSpec) exclusive() bool { return len(s.data) > 0 && s.name != SetSchema }

// inetSets lists the sets of `inet patchbay` in the order nft prints them.
func inetSets() []setSpec {
	const inet = nftables.TableFamilyINet
	v4, v6 := []field{fieldIPv4}, []field{fieldIPv6}
	port4, port6 := []field{fieldIPv4, fieldPort}, []field{fieldIPv6, fieldPort}
	pair4, pair6 := []field{fieldIPv4, fieldIPv4}, []field{fieldIPv6, fieldIPv6}
	return []setSpec{
		{SetSchema, inet, []field{fieldPort}, []field{fieldPort}, false, false},
		{SetOwners, inet, []field{fieldIfName}, nil, false, true},
		{SetPorts4, inet, []field{fieldProto, fieldPort}, port4, false, true},
		{SetPorts6, inet, []field{fieldProto, fieldPort}, port6, false, true},
		{SetHostPorts4, inet, []field{fieldIPv4, fieldProto, fieldPort}, port4, false, true},
		{SetHostPorts6, inet, []field{fieldIPv6, fieldProto, fieldPort}, port6, false, true},
		{SetMasqAll4, inet, v4, nil, false, true},
		{SetMasqAll6, inet, v6, nil, false, true},
		{SetHairpin4, inet, pair4, nil, true, false},
		{SetHairpin6, inet, pair6, nil, true, false},
		{SetMasq4, inet, pair4, nil, true, false},
		{SetMasq6, inet, pair6, nil, true, false},
		{SetNoMasq4, inet, pair4, nil, true, false},
		{SetNoMasq6, inet, pair6, nil, true, false},
		{SetIsolation, inet, []field{fieldIfName}, nil, false, false},
		{SetBridgeOK, inet, []field{fieldIfName, fieldIfName}, nil, false, false},
	}
}

// bridgeSets lists the sets of `bridge patchbay`.
func bridgeSets() []setSpec {
	const bridge = nftables.TableFamilyBridge
	return []setSpec{
		{SetSchema, bridge, []field{fieldPort}, []field{fieldPort}, false, false},
		{SetSpoofChecked, bridge, []field{fieldIfName}, nil, false, true},
		{SetSpoofAllowed, bridge, []field{fieldIfName, fieldEther}, nil, false, true},
	}
}

// specOf finds a set by name. The maps of a network's conditions are named
// "ports4_<id>" and look like "ports4".
func specOf(name string) (setSpec, bool) {
	kind, _, conditional := strings.Cut(name, "_")
	for _, s := range append(inetSets(), bridgeSets()[1:]...) {
		if s.name == kind && (!conditional || s.exclusive()) {
			s.name = name
			return s, true
		}
	}
	return setSpec{}, false
}

// set returns the library's form, with a table of the same family.
func (s setSpec) set() *nftables.Set {
	set := &nftables.Set{
		Table:         s.table(),
		Name:          s.name,
		KeyType:       concat(s.key),
		Concatenation: len(s.key) > 1,
		Interval:      s.interval,
		HasTimeout:    s.timeout,
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
