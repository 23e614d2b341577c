// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"errors"
	"fmt"
	"net"
	"unsafe"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Link returns a link by its name. If the link is missing, IsNotFound recognises the error. Link
// does not ask for statistics. It keeps the link's IPv6 settings for IPv6Setting. The name may be
// an alternative name of the link, which may be longer than 15 bytes.
func (c *Conn) Link(name string) (netlink.Link, error) {
	kind := unix.IFLA_IFNAME
	if len(name) >= unix.IFNAMSIZ {
		kind = unix.IFLA_ALT_IFNAME
	}
	link, err := c.getLink(0, attr(kind, vnl.ZeroTerminated(name)))
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	return link, nil
}

// LinkAt works like Link, with an index.
func (c *Conn) LinkAt(index int) (netlink.Link, error) {
	link, err := c.getLink(index)
	if err != nil {
		return nil, fmt.Errorf("find link %d: %w", index, err)
	}
	return link, nil
}

// skipStats asks the kernel to leave out statistics (RTEXT_FILTER_SKIP_STATS).
const skipStats = 1 << 3

func (c *Conn) getLink(index int, more ...vnl.NetlinkRequestData) (netlink.Link, error) {
	parts := append([]vnl.NetlinkRequestData{
		linkHead(index), attr32(unix.IFLA_EXT_MASK, skipStats),
	}, more...)
	msgs, err := c.request(unix.RTM_GETLINK, 0, 0, parts...)
	if err != nil {
		return nil, err
	}
	if len(msgs) != 1 {
		return nil, fmt.Errorf("the kernel sent %d links", len(msgs))
	}
	link, err := netlink.LinkDeserialize(nil, msgs[0])
	if err != nil {
		return nil, err
	}
	conf := find(msgs[0][unix.SizeofIfInfomsg:], unix.IFLA_AF_SPEC, unix.AF_INET6, unix.IFLA_INET6_CONF)
	if c.ipv6 == nil {
		c.ipv6 = make(map[int][]byte)
	}
	c.ipv6[link.Attrs().Index] = conf
	return link, nil
}

// Lives reports whether the namespace of a link's other end is still in use. id is that
// namespace's id as c sees it (IFLA_LINK_NETNSID). When the namespace ends, the kernel drops the
// id at once and deletes the namespace's links later. On Linux before 4.15, and if the caller may
// not ask, Lives returns true.
func (c *Conn) Lives(id int) bool {
	_, err := c.request(unix.RTM_GETLINK, 0, 0, linkHead(1), attr32(unix.IFLA_TARGET_NETNSID, uint32(id)))
	return !errors.Is(err, unix.EINVAL)
}

// IPv6Conf is the position of a setting in the kernel's list (include/uapi/linux/ipv6.h).
type IPv6Conf int

// These are settings in net/ipv6/conf/LINK.
const (
	AcceptRA       IPv6Conf = 3
	DisableIPv6    IPv6Conf = 26
	AcceptDAD      IPv6Conf = 27
	NdiscNotify    IPv6Conf = 29
	KeepAddrOnDown IPv6Conf = 42
	EnhancedDAD    IPv6Conf = 46
)

// String returns the name of the sysctl.
func (i IPv6Conf) String() string {
	switch i {
	case AcceptRA:
		return "accept_ra"
	case DisableIPv6:
		return "disable_ipv6"
	case AcceptDAD:
		return "accept_dad"
	case NdiscNotify:
		return "ndisc_notify"
	case KeepAddrOnDown:
		return "keep_addr_on_down"
	case EnhancedDAD:
		return "enhanced_dad"
	}
	return fmt.Sprintf("%d", int(i))
}

// IPv6Setting returns a setting of a link from the last call of Link or LinkAt. The kernel sends
// no settings if the link (MTU below 1280) or the kernel has no IPv6; then ok is false.
func (c *Conn) IPv6Setting(index int, conf IPv6Conf) (value int32, ok bool) {
	list := c.ipv6[index]
	at := 4 * int(conf)
	if len(list) < at+4 {
		return 0, false
	}
	return int32(vnl.NativeEndian().Uint32(list[at:])), true
}

// SetUp sets a link up. If notify is set, the same message also sets arp_notify. To write the
// sysctl instead would need a thread in the namespace.
func (c *Conn) SetUp(index int, notify bool) error {
	head := linkHead(index)
	head.Flags, head.Change = unix.IFF_UP, unix.IFF_UP
	parts := []vnl.NetlinkRequestData{head}
	if notify {
		parts = append(parts, ARPNotify.attr(1))
	}
	_, err := c.request(unix.RTM_SETLINK, unix.NLM_F_ACK, 0, parts...)
	return err
}

// Veth describes a new veth pair. The near end is in the namespace of the Conn, the far end in
// another namespace. MTU is in bytes; 0 means the kernel's default. Master is the index of a
// bridge; 0 means none.
type Veth struct {
	Name, Peer   string
	MAC, PeerMAC net.HardwareAddr
	MTU          int
	Master       int
	PeerNS       int // descriptor of the peer's namespace
	Down         bool
}

// AddVeth creates a veth pair with one message. The near end is in its bridge, and up unless Down is
// set; the far end is down. The library would need three messages, one of them a lookup.
//
// Each end has one queue. By default the kernel would make a queue for every possible CPU, but
// use only the first until `ethtool -L` asks for more. The other queues would cost memory, and a
// third of the time that the pair takes.
func (c *Conn) AddVeth(v Veth) error {
	head := linkHead(0)
	if !v.Down {
		head.Flags, head.Change = unix.IFF_UP, unix.IFF_UP
	}
	parts := append([]vnl.NetlinkRequestData{head}, v.end(v.Name, v.MAC)...)
	if v.Master != 0 {
		parts = append(parts, attr32(unix.IFLA_MASTER, uint32(v.Master)))
	}
	info := attr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(vnl.IFLA_INFO_KIND, vnl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(vnl.IFLA_INFO_DATA, nil).AddRtAttr(vnl.VETH_INFO_PEER, nil)
	vnl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	for _, p := range v.end(v.Peer, v.PeerMAC) {
		peer.AddChild(p)
	}
	peer.AddChild(attr32(unix.IFLA_NET_NS_FD, uint32(v.PeerNS)))
	_, err := c.request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, 0, append(parts, info)...)
	return err
}

func (v Veth) end(name string, mac net.HardwareAddr) []vnl.NetlinkRequestData {
	out := []vnl.NetlinkRequestData{
		attr(unix.IFLA_IFNAME, vnl.ZeroTerminated(name)),
		attr32(unix.IFLA_NUM_TX_QUEUES, 1), attr32(unix.IFLA_NUM_RX_QUEUES, 1),
	}
	if len(mac) > 0 {
		out = append(out, attr(unix.IFLA_ADDRESS, mac))
	}
	if v.MTU > 0 {
		out = append(out, attr32(unix.IFLA_MTU, uint32(v.MTU)))
	}
	return out
}

// PortFlags are flags of a port of a bridge.
type PortFlags struct{ Hairpin, Isolated bool }

// SetAlias writes a link's ifalias. If flags has any flag, it also sets the flags of the link
// as a port. SetAlias sends one message.
func (c *Conn) SetAlias(name, alias string, flags PortFlags) error {
	return c.mark(name, alias, flags)
}

// SetAliasQuiet works like SetAlias. SetAliasQuiet also stops the kernel from giving the link
// an IPv6 address when its carrier comes up (IFLA_INET6_ADDR_GEN_MODE none). Each such address
// would slow down every later link of this node that goes down, because the kernel walks all
// IPv6 routes then.
func (c *Conn) SetAliasQuiet(name, alias string, flags PortFlags) error {
	const genModeNone = 1 // IN6_ADDR_GEN_MODE_NONE, include/uapi/linux/if_link.h
	spec := attr(unix.IFLA_AF_SPEC, nil)
	spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{genModeNone})
	err := c.mark(name, alias, flags, spec)
	if errors.Is(err, unix.EAFNOSUPPORT) { // without IPv6 there is no address either
		return c.mark(name, alias, flags)
	}
	return err
}

func (c *Conn) mark(name, alias string, flags PortFlags, more ...vnl.NetlinkRequestData) error {
	parts := append([]vnl.NetlinkRequestData{
		linkHead(0), attr(unix.IFLA_IFNAME, vnl.ZeroTerminated(name)), attr(unix.IFLA_IFALIAS, []byte(alias)),
	}, more...)
	if flags != (PortFlags{}) {
		info := attr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(vnl.IFLA_INFO_SLAVE_KIND, vnl.NonZeroTerminated("bridge"))
		data := info.AddRtAttr(vnl.IFLA_INFO_SLAVE_DATA, nil)
		if flags.Hairpin {
			data.AddRtAttr(vnl.IFLA_BRPORT_MODE, []byte{1})
		}
		if flags.Isolated {
			data.AddRtAttr(vnl.IFLA_BRPORT_ISOLATED, []byte{1})
		}
		parts = append(parts, info)
	}
	_, err := c.request(unix.RTM_NEWLINK, unix.NLM_F_ACK, 0, parts...)
	return err
}

// PortFlags returns the flags of one port (IFLA_INFO_SLAVE_DATA). The library would list all
// ports. A link that is not a port has no flags.
func (c *Conn) PortFlags(index int) (PortFlags, error) {
	msgs, err := c.request(unix.RTM_GETLINK, 0, 0, linkHead(index))
	if err != nil {
		return PortFlags{}, fmt.Errorf("read port %d: %w", index, err)
	}
	var flags PortFlags
	isOn := func(v []byte) bool { return len(v) == 1 && v[0] != 0 }
	for _, m := range msgs {
		data := find(m[unix.SizeofIfInfomsg:], unix.IFLA_LINKINFO, vnl.IFLA_INFO_SLAVE_DATA)
		flags.Hairpin = isOn(find(data, vnl.IFLA_BRPORT_MODE))
		flags.Isolated = isOn(find(data, vnl.IFLA_BRPORT_ISOLATED))
	}
	return flags, nil
}

// Forwarding reports whether forwarding is on for all interfaces. family is unix.AF_INET (the
// sysctl net/ipv4/ip_forward) or unix.AF_INET6 (net/ipv6/conf/all/forwarding).
func (c *Conn) Forwarding(family int) (bool, error) { return c.forwards(family, 0xffffffff) } // NETCONFA_IFINDEX_ALL

// Forwards reports whether the host forwards packets that enter through one interface.
func (c *Conn) Forwards(family, index int) (bool, error) { return c.forwards(family, uint32(index)) }

func (c *Conn) forwards(family int, index uint32) (bool, error) {
	const ifIndex, forwarding = 1, 2 // NETCONFA_*, include/uapi/linux/netconf.h
	head := &vnl.RtGenMsg{}
	head.Family = uint8(family)
	msgs, err := c.request(unix.RTM_GETNETCONF, 0, 0, head, attr32(ifIndex, index))
	if err != nil {
		return false, fmt.Errorf("read forwarding: %w", err)
	}
	if len(msgs) != 1 || len(msgs[0]) < 4 {
		return false, errors.New("read forwarding: the kernel sent no answer")
	}
	v := find(msgs[0][4:], forwarding)
	return len(v) == 4 && vnl.NativeEndian().Uint32(v) != 0, nil
}

// LinkChange says what SetLink changes. A field with the zero value changes nothing.
type LinkChange struct {
	Name   string
	Alias  *string // ifalias; "" removes it
	MAC    net.HardwareAddr
	MTU    int // bytes
	Master int // index of the link's new bridge
	NetNS  int // descriptor of the link's new namespace, where it gets Name
	Down   bool
	Up     bool
}

// SetLink changes a link with one message, which the kernel applies under one lock. The order
// is: namespace, address, MTU, name, then up or down. If a step fails, the earlier changes
// remain.
func (c *Conn) SetLink(index int, to LinkChange) error {
	head := linkHead(index)
	parts := []vnl.NetlinkRequestData{head}
	if to.Up || to.Down {
		head.Change = unix.IFF_UP
	}
	if to.Up {
		head.Flags = unix.IFF_UP
	}
	if to.NetNS > 0 {
		parts = append(parts, attr32(unix.IFLA_NET_NS_FD, uint32(to.NetNS)))
	}
	if len(to.MAC) > 0 {
		parts = append(parts, attr(unix.IFLA_ADDRESS, to.MAC))
	}
	if to.MTU > 0 {
		parts = append(parts, attr32(unix.IFLA_MTU, uint32(to.MTU)))
	}
	if to.Name != "" {
		parts = append(parts, attr(unix.IFLA_IFNAME, vnl.ZeroTerminated(to.Name)))
	}
	if to.Alias != nil {
		parts = append(parts, attr(unix.IFLA_IFALIAS, []byte(*to.Alias)))
	}
	if to.Master > 0 {
		parts = append(parts, attr32(unix.IFLA_MASTER, uint32(to.Master)))
	}
	_, err := c.request(unix.RTM_SETLINK, unix.NLM_F_ACK, 0, parts...)
	return err
}

// TxChecksum reports whether a link sends packets without their checksums. The kernel's last step
// or the network card then computes them.
func (c *Conn) TxChecksum(name string) (on bool, err error) {
	const get = 0x16 // ETHTOOL_GTXCSUM
	value, err := c.ethtool(name, get, 0)
	return value != 0, err
}

// SetTxChecksum does what `ethtool -K name tx on|off` does.
func (c *Conn) SetTxChecksum(name string, on bool) error {
	const set = 0x17 // ETHTOOL_STXCSUM
	value := uint32(0)
	if on {
		value = 1
	}
	_, err := c.ethtool(name, set, value)
	return err
}

// ethtool makes one call with a struct ethtool_value. The newer interface, by netlink, is not
// in the kernels whose offload is broken.
func (c *Conn) ethtool(name string, command, data uint32) (uint32, error) {
	value := [2]uint32{command, data}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	err := c.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // nothing was written
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
		if errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("ethtool %s: %w", name, err)
	}
	return value[1], nil
}
