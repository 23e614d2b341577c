// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/google/nftables"
)

// schemaNumber is the schema of the table that this program writes. A change of the layout
// only adds to it and increases the number. The number is a string so that a test can build a program
// with another number: -ldflags "-X
// github.com/patchbay-net/patchbay/internal/nft.schemaNumber=9".
var schemaNumber = "8"

// Schema returns the schema number that this program writes.
func Schema() uint16 {
	n, err := strconv.ParseUint(schemaNumber, 10, 16)
	if err != nil {
		panic("nft: schemaNumber is not a number: " + schemaNumber) // the linker set it
	}
	return uint16(n)
}

// NewerSchemaError means that a newer program made the table. This program changed nothing.
type NewerSchemaError struct {
	Table           string // such as "inet patchbay"
	Have, Supported uint16
}

// Error names both schema numbers and says what to do.
func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("nftables table %q has schema %d, this patchbay knows up to %d: use the newer patchbay, "+
		"or run `nft delete table %s` and then `patchbay repair` with this one", e.Table, e.Have, e.Supported, e.Table)
}

// state says what the kernel has of one of our tables.
type state struct {
	family  nftables.TableFamily
	present bool
	schema  uint16
	sets    []string // sets of the table; read only if the schema must change
}

// schemaLookup returns the query for the schema number.
func schemaLookup(f nftables.TableFamily) query { return schemaSpec(f).element(number(0)) }

// stateFrom reads the answer to schemaLookup.
func stateFrom(f nftables.TableFamily, got found) (state, error) {
	s := state{family: f, present: got.found}
	if !got.found {
		return s, nil
	}
	if len(got.Data) != 2 {
		return s, fmt.Errorf("read schema of table %s %s: %d bytes: %w", FamilyName(f), TableName, len(got.Data), errMalformed)
	}
	s.schema = binary.BigEndian.Uint16(got.Data)
	if supported := Schema(); s.schema > supported {
		return s, &NewerSchemaError{Table: FamilyName(f) + " " + TableName, Have: s.schema, Supported: supported}
	}
	return s, nil
}

// prepare queues the changes that bring the table to our schema.
func (s state) prepare(enc *nftables.Conn) error {
	switch supported := Schema(); {
	case !s.present:
		return layoutOf(s.family).create(enc, supported)
	case s.schema < supported:
		return layoutOf(s.family).upgrade(enc, s.sets, s.schema, supported)
	}
	return nil
}

// FamilyName returns nft's name of a family.
func FamilyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyINet:
		return "inet"
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyBridge:
		return "bridge"
	case nftables.TableFamilyNetdev:
		return "netdev"
	case nftables.TableFamilyARP:
		return "arp"
	}
	return fmt.Sprint(f)
}
