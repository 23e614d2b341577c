// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// floor measures what an attachment of the full chain costs without any plugin: one exec of an
// empty program, and then the bare netlink calls from this process. The bridge and the firewall's
// sets exist already, as on a working node. Without a bridge, the calls are those of ptp.
type floor struct {
	host, container *netlink.Handle
	bridge          netlink.Link // may be nil
	sandbox         netns.NsHandle
	nft             *nftables.Conn
	owners, ports   *nftables.Set
}

const (
	floorIP      = "10.201.255.2" // far from the addresses that plugins give out
	floorGateway = "10.201.0.1"
)

func newFloor(chain string) (*floor, error) {
	path, err := sandbox("floor")
	if err != nil {
		return nil, err
	}
	f := &floor{}
	if f.sandbox, err = netns.GetFromPath(path); err != nil {
		return nil, err
	}
	if f.host, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if f.container, err = netlink.NewHandleAt(f.sandbox, unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if chain != "grow" {
		if err := f.makeBridge(); err != nil {
			return nil, err
		}
	}
	return f, f.makeSets()
}

func (f *floor) makeBridge() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "bench0"
	if err := f.host.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	bridge, err := f.host.LinkByName("bench0")
	if err != nil {
		return err
	}
	f.bridge = bridge
	if err := f.host.AddrAdd(bridge, &netlink.Addr{IPNet: ipNet(floorGateway + "/16")}); err != nil {
		return err
	}
	return f.host.LinkSetUp(bridge)
}

// makeSets makes the two sets in which our firewall keeps the elements of one attachment of the
// chain.
func (f *floor) makeSets() error {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return err
	}
	f.nft = conn
	table := conn.AddTable(&nftables.Table{Name: "floor", Family: nftables.TableFamilyINet})
	f.owners = &nftables.Set{Table: table, Name: "owners", KeyType: nftables.TypeIFName}
	f.ports = &nftables.Set{
		Table: table, Name: "ports4", IsMap: true, Concatenation: true,
		KeyType:  nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		DataType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService),
	}
	for _, set := range []*nftables.Set{f.owners, f.ports} {
		if err := conn.AddSet(set, nil); err != nil {
			return err
		}
	}
	return conn.Flush()
}

// floorCycle measures one bare attachment and its removal. Add.CPU counts only the exec, because
// the calls run in this process.
func (w *worker) floorCycle(chain string) (c cycle, err error) {
	if w.floor == nil {
		if w.floor, err = newFloor(chain); err != nil {
			return c, err
		}
	}
	f := w.floor
	c.Add, err = timed(func() error {
		if err := exec.Command(w.node.Empty).Run(); err != nil {
			return err
		}
		return f.add()
	})
	if err != nil {
		return c, fmt.Errorf("bare add: %w", err)
	}
	c.Del, err = timed(func() error {
		for _, args := range [][]string{{w.node.DelLink, "floor0"}, {w.node.Empty}, {w.node.Empty}} {
			if err := exec.Command(args[0], args[1:]...).Run(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return c, fmt.Errorf("bare delete: %w", err)
	}
	return c, f.forget()
}

func (f *floor) add() error {
	for _, step := range []func() error{f.addLink, f.addAddresses, f.addElements, f.writeFiles} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (f *floor) addLink() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "floor0"
	if f.bridge != nil {
		attrs.MasterIndex = f.bridge.Attrs().Index
	}
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.sandbox)}
	if err := f.host.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	if f.bridge == nil {
		return f.addHostRoute(veth)
	}
	if err := f.host.LinkSetHairpin(veth, true); err != nil {
		return fmt.Errorf("set hairpin: %w", err)
	}
	return f.host.LinkSetUp(veth)
}

// addHostRoute gives the host's end of a pair what ptp gives it.
func (f *floor) addHostRoute(veth netlink.Link) error {
	if err := f.host.LinkSetUp(veth); err != nil {
		return err
	}
	if err := f.host.AddrAdd(veth, &netlink.Addr{IPNet: ipNet(floorGateway + "/32")}); err != nil {
		return fmt.Errorf("add the gateway's address: %w", err)
	}
	return f.host.RouteAdd(&netlink.Route{LinkIndex: veth.Attrs().Index, Dst: ipNet(floorIP + "/32"), Scope: netlink.SCOPE_LINK})
}

func (f *floor) addAddresses() error {
	eth0, err := f.container.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := f.container.AddrAdd(eth0, &netlink.Addr{IPNet: ipNet(floorIP + "/16")}); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := f.container.LinkSetUp(eth0); err != nil {
		return err
	}
	return f.container.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(floorGateway)})
}

func (f *floor) elements() (owner, port []nftables.SetElement) {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, "floorfloorfloor")
	proto, host, to := []byte{unix.IPPROTO_TCP, 0, 0, 0}, binaryutil.BigEndian.PutUint16(10000), binaryutil.BigEndian.PutUint16(80)
	key := append(append(proto, host...), 0, 0)
	val := append(append(net.ParseIP(floorIP).To4(), to...), 0, 0)
	return []nftables.SetElement{{Key: name, Comment: "full/floor/eth0"}}, []nftables.SetElement{{Key: key, Val: val}}
}

func (f *floor) addElements() error {
	owner, port := f.elements()
	if err := f.nft.SetAddElements(f.owners, owner); err != nil {
		return err
	}
	if err := f.nft.SetAddElements(f.ports, port); err != nil {
		return err
	}
	return f.nft.Flush()
}

// floorFiles are the files of one attachment: its address, the last address, our record, and the
// caller's cache.
var floorFiles = [...]string{"/var/lib/cni/networks/full/" + floorIP, "/var/lib/cni/networks/full/last_reserved_ip.0",
	"/run/patchbay/attachments/full/floor", "/var/lib/cni/results/full-floor-eth0"}

func (f *floor) writeFiles() error {
	for _, path := range floorFiles {
		err := os.WriteFile(path+".tmp", []byte(floorIP), 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return err
			}
			err = os.WriteFile(path+".tmp", []byte(floorIP), 0o600)
		}
		if err != nil {
			return err
		}
		if err := os.Rename(path+".tmp", path); err != nil {
			return err
		}
	}
	return nil
}

// forget removes the firewall elements that the bare delete leaves. Its time does not count.
func (f *floor) forget() error {
	owner, port := f.elements()
	if err := f.nft.SetDeleteElements(f.owners, owner); err != nil {
		return err
	}
	if err := f.nft.SetDeleteElements(f.ports, port); err != nil {
		return err
	}
	return f.nft.Flush()
}

func ipNet(cidr string) *net.IPNet {
	ip, n, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err) // this file has the constant, so parsing it cannot fail
	}
	n.IP = ip
	return n
}
