// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// FDBEntry is an entry in the forwarding database of a VXLAN device. The device sends frames
// for MAC to Remote. The library's type has no field for the port.
type FDBEntry struct {
	MAC    net.HardwareAddr
	Remote netip.Addr // not valid if the entry has no remote address
	Port   uint16     // UDP port; 0 means the device's port
}

// FDB lists the entries of one VXLAN device.
func (c *Conn) FDB(index int) (out []FDBEntry, err error) {
	msgs, err := Retry(func() ([][]byte, error) {
		head := &netlink.Ndmsg{Family: unix.AF_BRIDGE}
		// NDA_IFINDEX limits the answer to this device.
		return c.request(unix.RTM_GETNEIGH, unix.NLM_F_DUMP, unix.RTM_NEWNEIGH, head, attr32(unix.NDA_IFINDEX, uint32(index)))
	})
	if err != nil {
		return nil, fmt.Errorf("list forwarding database of link %d: %w", index, err)
	}
	for _, m := range msgs {
		if e, of, ok := parseFDB(m); ok && of == index {
			out = append(out, e)
		}
	}
	return out, nil
}

// sizeofNdmsg is the length of struct ndmsg.
const sizeofNdmsg = 12

func parseFDB(m []byte) (e FDBEntry, index int, ok bool) {
	if len(m) < sizeofNdmsg {
		return e, 0, false
	}
	index = int(vnl.NativeEndian().Uint32(m[4:]))
	for kind, v := range attributes(m[sizeofNdmsg:]) {
		switch {
		case kind == unix.NDA_LLADDR && len(v) == 6:
			e.MAC = net.HardwareAddr(v)
		case kind == unix.NDA_DST:
			e.Remote, _ = netip.AddrFromSlice(v)
		case kind == unix.NDA_PORT && len(v) == 2:
			e.Port = binary.BigEndian.Uint16(v)
		}
	}
	return e, index, e.MAC != nil
}

// SetFDB makes e the device's only entry for its MAC. It replaces an earlier remote address in
// one step.
func (c *Conn) SetFDB(index int, e FDBEntry) error {
	parts := e.message(index)
	if e.Remote.IsValid() {
		parts = append(parts, attr(unix.NDA_DST, e.Remote.AsSlice()))
	}
	if e.Port != 0 {
		parts = append(parts, attr(unix.NDA_PORT, binary.BigEndian.AppendUint16(nil, e.Port)))
	}
	_, err := c.request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK, 0, parts...)
	return err
}

// DeleteFDB removes the entry for the MAC of e.
func (c *Conn) DeleteFDB(index int, e FDBEntry) error {
	_, err := c.request(unix.RTM_DELNEIGH, unix.NLM_F_ACK, 0, e.message(index)...)
	return err
}

func (e FDBEntry) message(index int) []vnl.NetlinkRequestData {
	head := &netlink.Ndmsg{
		Family: unix.AF_BRIDGE, Index: uint32(index),
		State: unix.NUD_PERMANENT | unix.NUD_NOARP, Flags: unix.NTF_SELF,
	}
	return []vnl.NetlinkRequestData{head, attr(unix.NDA_LLADDR, e.MAC)}
}

// SetVXLANLocal changes the source address of a VXLAN device to another one of the same family
// (Linux 5.0). The library would send attributes that the kernel refuses to change.
func (c *Conn) SetVXLANLocal(index int, local netip.Addr) error {
	kind := vnl.IFLA_VXLAN_LOCAL
	if local.Is6() {
		kind = vnl.IFLA_VXLAN_LOCAL6
	}
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(vnl.IFLA_INFO_KIND, vnl.NonZeroTerminated("vxlan"))
	info.AddRtAttr(vnl.IFLA_INFO_DATA, nil).AddRtAttr(kind, local.AsSlice())
	_, err := c.request(unix.RTM_NEWLINK, unix.NLM_F_ACK, 0, linkHead(index), info)
	return err
}
