// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
)

// LegacyTables returns the tables of iptables-legacy and ip6tables-legacy that are in use,
// each once. Their rules cannot be reached over netlink. LegacyTables reads
// /proc/net/ip_tables_names and ip6_tables_names; proc is the path of procfs. If the kernel
// has no such tables, or a rootless caller may not read the lists, it returns none.
func LegacyTables(proc string) ([]string, error) {
	var tables []string
	for _, family := range [...]string{"ip", "ip6"} {
		names, err := legacyTables(proc, family)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			tables = append(tables, family+" "+name)
		}
	}
	return tables, nil
}

// legacyTables does the work of LegacyTables for one family, ip or ip6.
func legacyTables(proc, family string) ([]string, error) {
	b, err := durable.ReadProc(filepath.Join(proc, "thread-self/net", family+"_tables_names"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read iptables-legacy tables: %w", err)
	}
	return strings.Fields(string(b)), nil
}

// LegacyForwardDrops reports whether FORWARD in the filter table of iptables-legacy or
// ip6tables-legacy drops by policy, or has a rule that drops or rejects. No rule of ours can
// prevent such a drop. The call makes the kernel create the table. So call it only if LegacyTables
// returned "ip filter" or "ip6 filter". LegacyForwardDrops needs CAP_NET_ADMIN and CAP_NET_RAW.
func LegacyForwardDrops(v6 bool) (bool, error) {
	drops, err := forwardDrops(v6)
	if err != nil {
		return false, fmt.Errorf("read iptables-legacy filter table: %w", err)
	}
	return drops, nil
}

// This is the layout of include/uapi/linux/netfilter_ipv4/ip_tables.h and its IPv6
// counterpart. The interface has not changed since Linux 2.6.
const (
	soGetInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	soGetEntries = 65
	infoLen      = 84 // name[32], valid_hooks, hook_entry[5], underflow[5], num_entries, size
	entriesHead  = 40 // name[32], size, padding
	hookForward  = 2  // NF_INET_FORWARD
	targetHead   = 32 // struct xt_entry_target: size, name[29], revision
)

func forwardDrops(v6 bool) (bool, error) {
	family, level, targetAt := unix.AF_INET, unix.SOL_IP, 88
	if v6 {
		family, level, targetAt = unix.AF_INET6, unix.SOL_IPV6, 140
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false, fmt.Errorf("open raw socket: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	info := make([]byte, infoLen)
	copy(info, tableFilter)
	if err := getsockopt(fd, level, soGetInfo, info); err != nil {
		return false, err
	}
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(info[32+4*i:]) }
	first, policy, size := word(1+hookForward), word(6+hookForward), word(12)
	entries := make([]byte, entriesHead+int(size))
	copy(entries, tableFilter)
	binary.NativeEndian.PutUint32(entries[32:], size)
	if err := getsockopt(fd, level, soGetEntries, entries); err != nil {
		return false, err // if the table changed between the calls, the error is EAGAIN and the caller may try again
	}
	return entriesDrop(entries[entriesHead:], int(first), int(policy), targetAt), nil
}

// entriesDrop walks through the entries of a chain up to its policy, which is the last entry.
func entriesDrop(b []byte, at, policy, targetAt int) bool {
	for at >= 0 && at <= policy && at+targetAt+4 <= len(b) {
		target := at + int(binary.NativeEndian.Uint16(b[at+targetAt:]))
		next := int(binary.NativeEndian.Uint16(b[at+targetAt+2:]))
		if target+targetHead+4 > len(b) || next == 0 {
			return false
		}
		verdict := int32(binary.NativeEndian.Uint32(b[target+targetHead:]))
		name := unix.ByteSliceToString(b[target+2 : target+targetHead-1])
		if name == "" && verdict == -1 || name == "REJECT" { // standard target, -NF_DROP - 1
			return true
		}
		at += next
	}
	return false
}

func getsockopt(fd, level, name int, b []byte) error {
	n := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return fmt.Errorf("getsockopt %d: %w", name, errno)
	}
	return nil
}

// LegacyDrops returns an error if a FORWARD chain of iptables-legacy drops packets, because we
// cannot change that chain. It looks at the families of the subnets. If there are no subnets, it
// looks at both families. proc is the path of procfs.
func LegacyDrops(proc string, concerned []netip.Prefix) error {
	var programs []string
	for _, family := range [...]struct {
		name, program string
		v6            bool
	}{{"ip", "iptables-legacy", false}, {"ip6", "ip6tables-legacy", true}} {
		hit := func(p netip.Prefix) bool { return p.Addr().Is6() == family.v6 }
		if len(concerned) > 0 && !slices.ContainsFunc(concerned, hit) {
			continue
		}
		tables, err := legacyTables(proc, family.name)
		if err != nil {
			return err
		}
		if !slices.Contains(tables, "filter") {
			continue
		}
		drops, err := LegacyForwardDrops(family.v6)
		if err != nil {
			return err
		}
		if drops {
			programs = append(programs, family.program)
		}
	}
	if len(programs) == 0 {
		return nil
	}
	return fmt.Errorf("chain FORWARD of %s drops packets, and no nftables rule can change that: containers may have no network; "+
		"accept their subnets there (-I FORWARD -s SUBNET -j ACCEPT, and -d SUBNET), or move the rules to iptables-nft",
		strings.Join(programs, " and "))
}
