// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// attribute is one property of the container's interface. Its functions serve ADD, CHECK, and
// the DEL that restores it.
type attribute struct {
	name   string // name as ip(8) writes it
	ifName string
	want   string
	get    func(netlink.Link) string
	set    func(c *nl.Conn, link netlink.Link, value string) error
	differ string // text of CHECK's error, with interface, wanted and current value
}

func (a attribute) String() string {
	return fmt.Sprintf("sandbox: ip link set dev %s %s %s", a.ifName, a.name, a.want)
}

// Ensure sets the property, and its undo restores the old value.
func (a attribute) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	link, err := env.Sandbox.Link(a.ifName)
	if err != nil {
		return nil, fmt.Errorf("failed to get %q: %w", a.ifName, err)
	}
	old := a.get(link)
	if err := a.apply(env.Sandbox, link, a.want); err != nil {
		return nil, err
	}
	env.Forget(netstate.Sandbox, a.ifName)
	return func(context.Context) error { return a.apply(env.Sandbox, link, old) }, nil
}

func (a attribute) apply(c *nl.Conn, link netlink.Link, value string) error {
	if err := a.set(c, link, value); err != nil {
		return fmt.Errorf("set %s of %s to %s: %w", a.name, a.ifName, value, err)
	}
	return nil
}

// Diff reports whether the property has another value in the kernel.
func (a attribute) Diff(_ context.Context, env *netstate.Env) (string, error) {
	link, err := env.Link(netstate.Sandbox, a.ifName)
	if nl.IsNotFound(err) {
		return fmt.Sprintf("Cannot find container link %v", a.ifName), nil
	} else if err != nil {
		return "", err
	}
	if now := a.get(link); now != a.want {
		return fmt.Sprintf(a.differ, a.ifName, a.want, now), nil
	}
	return "", nil
}

// attributes returns the link attributes that c sets, in the order in which the reference
// plugin sets them.
func attributes(c *Conf, ifName string) (list []attribute) {
	b := saved{Mac: canonicalMAC(c.Mac), MTU: c.MTU, Allmulti: c.Allmulti, TxQLen: c.TxQLen}
	if c.Promisc {
		b.Promisc = &c.Promisc
	}
	return b.attributes(ifName)
}

// attributes returns the attributes that are set in s.
func (s saved) attributes(ifName string) (list []attribute) {
	if s.Mac != "" {
		list = append(list, attribute{"address", ifName, s.Mac, getMAC, setMAC,
			"Error: Tuning configured Ethernet of %s is %s, current value is %s"})
	}
	if s.Promisc != nil {
		list = append(list, attribute{"promisc", ifName, onOff(*s.Promisc), getPromisc, setPromisc,
			"Error: Tuning link %s configured promisc is %v, current value is %s"})
	}
	if s.MTU != 0 {
		list = append(list, attribute{"mtu", ifName, fmt.Sprint(s.MTU), getMTU, setMTU,
			"Error: Tuning configured MTU of %s is %s, current value is %s"})
	}
	if s.Allmulti != nil {
		list = append(list, attribute{"allmulticast", ifName, onOff(*s.Allmulti), getAllmulti, setAllmulti,
			"Error: Tuning configured all-multicast mode of %s is %v, current value is %v"})
	}
	if s.TxQLen != nil {
		list = append(list, attribute{"txqueuelen", ifName, fmt.Sprint(*s.TxQLen), getTxQLen, setTxQLen,
			"Error: Tuning configured Transmit Queue Length of %s is %s, current value is %s"})
	}
	return list
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func getMAC(l netlink.Link) string      { return l.Attrs().HardwareAddr.String() }
func getMTU(l netlink.Link) string      { return fmt.Sprint(l.Attrs().MTU) }
func getTxQLen(l netlink.Link) string   { return fmt.Sprint(l.Attrs().TxQLen) }
func getPromisc(l netlink.Link) string  { return onOff(l.Attrs().Promisc != 0) }
func getAllmulti(l netlink.Link) string { return onOff(l.Attrs().RawFlags&unix.IFF_ALLMULTI != 0) }

func setMAC(c *nl.Conn, l netlink.Link, v string) error {
	mac, err := net.ParseMAC(v)
	if err != nil {
		return err
	}
	return c.LinkSetHardwareAddr(l, mac)
}

func setMTU(c *nl.Conn, l netlink.Link, v string) error {
	return number(v, func(n int) error { return c.LinkSetMTU(l, n) })
}

func setTxQLen(c *nl.Conn, l netlink.Link, v string) error {
	return number(v, func(n int) error { return c.LinkSetTxQLen(l, n) })
}

func setPromisc(c *nl.Conn, l netlink.Link, v string) error {
	if v == "on" {
		return c.SetPromiscOn(l)
	}
	return c.SetPromiscOff(l)
}

func setAllmulti(c *nl.Conn, l netlink.Link, v string) error {
	if v == "on" {
		return c.LinkSetAllmulticastOn(l)
	}
	return c.LinkSetAllmulticastOff(l)
}

func number(v string, set func(int) error) error {
	var n int
	if _, err := fmt.Sscan(v, &n); err != nil {
		return err
	}
	return set(n)
}

// canonicalMAC returns an address in the kernel's form. The address is valid, because Load has
// parsed it.
func canonicalMAC(s string) string {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return s
	}
	return mac.String()
}

// saved is the content of the reference's backup file. It has the original value of every changed
// attribute. So the reference can restore what we saved, and the reverse.
type saved struct {
	Mac      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Allmulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"`
}

// original reads from link the values that c will change.
func original(c *Conf, link netlink.Link) saved {
	var s saved
	if c.Mac != "" {
		s.Mac = link.Attrs().HardwareAddr.String()
	}
	if c.Promisc {
		on := link.Attrs().Promisc != 0
		s.Promisc = &on
	}
	if c.MTU != 0 {
		s.MTU = link.Attrs().MTU
	}
	if c.Allmulti != nil {
		on := link.Attrs().RawFlags&unix.IFF_ALLMULTI != 0
		s.Allmulti = &on
	}
	if c.TxQLen != nil {
		n := link.Attrs().TxQLen
		s.TxQLen = &n
	}
	return s
}

// or returns s with the values of t that s lacks.
func (s saved) or(t saved) saved {
	return saved{
		Mac: cmp.Or(s.Mac, t.Mac), Promisc: cmp.Or(s.Promisc, t.Promisc), MTU: cmp.Or(s.MTU, t.MTU),
		Allmulti: cmp.Or(s.Allmulti, t.Allmulti), TxQLen: cmp.Or(s.TxQLen, t.TxQLen),
	}
}

// backupPath returns the path of the backup file. id and ifName are validated names.
func backupPath(dataDir, id, ifName string) string {
	return filepath.Join(dataDir, id+"_"+ifName+".json")
}

// save writes a backup in one step, so the file is never incomplete.
func (s saved) save(path string) error {
	data, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return fmt.Errorf("encode backup: %w", err)
	}
	if err := durable.MakeDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("failed to create backup directory: %w", err)
	}
	if err := durable.Write(path, data); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}

// loadSaved reads a backup. If the file is missing, empty or cut short, the backup is empty.
func loadSaved(path string) (s saved, err error) {
	if err := durable.CheckDir(filepath.Dir(path)); err != nil {
		return s, fmt.Errorf("read backup: %w", err)
	}
	data, err := durable.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read backup: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return saved{}, fmt.Errorf("read backup %s: %w", path, err)
	}
	return s, nil
}

func removeFile(path string) error {
	err := durable.CheckDir(filepath.Dir(path))
	if err == nil {
		err = durable.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("remove backup: %w", err)
	}
	return nil
}
