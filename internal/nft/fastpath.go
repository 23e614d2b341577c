// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Established flows between a network's bridge and an uplink can skip the hooks of the firewall. The
// kernel calls this a flowtable. It finds the flow of a packet where the packet enters a device of
// the flowtable, translates the addresses, and sends the packet out. Our table has these objects
// only while a network asks for them:
//
//	set fastpath { type ifname . ifname; elements = { "cni0" . "eth0" } }
//	flowtable fastpath { hook ingress priority filter; devices = { cni0, eth0 }; counter }
//	chain fastpath {
//		type filter hook forward priority filter + 10;
//		iifname . oifname @fastpath ct state established flow add @fastpath
//	}
//
// The chain comes after the filters of other programs. So a flow skips these filters only after all of
// them have accepted it. The flow has both directions, but packets of a direction skip the hooks only if
// they enter through a device of the flowtable. When a device is deleted, the kernel removes it from the
// flowtable.
const (
	SetFastPath = "fastpath" // bridge . uplink: established flows skip the hooks

	chainFastPath = "fastpath"
	flowtableName = "fastpath"
	prioFastPath  = 10
)

// FastPath returns the element that lets established flows between a bridge and an uplink skip the
// hooks of the firewall. EnsureFastPath makes the objects that it needs.
func FastPath(bridge, uplink, network string) Element {
	return Element{Set: SetFastPath, Key: IfNamePair(bridge, uplink), Comment: CleanComment(network)}
}

// fastPathChain returns the chain that adds flows to the flowtable. The kernel itself accepts only
// TCP and UDP there, no flow with an ALG, and no TCP connection that is being closed.
func fastPathChain() chainSpec {
	return chainSpec{
		name: chainFastPath, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, prio: prioFastPath,
		rules: []staticRule{{"", rule(betweenIn(SetFastPath), established(), offload())}},
	}
}

// established matches packets of connections that have been answered.
func established() match {
	return match{
		&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
		bitwise(reg1, native(expr.CtStateBitESTABLISHED)),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
}

func offload() match { return match{&expr.FlowOffload{Name: flowtableName}} }

// withFastPath adds the chain of the fast path to the layout, if the table has the set.
func (l layout) withFastPath(sets []string) layout {
	if l.family == nftables.TableFamilyINet && slices.Contains(sets, SetFastPath) {
		l.chains = append(l.chains, fastPathChain())
	}
	return l
}

// flowtable returns the flowtable with these devices. With its counter, the kernel also counts the
// packets of flows that skip the hooks, if it counts those of connections (nf_conntrack_acct).
func flowtable(t *nftables.Table, devices ...string) *nftables.Flowtable {
	return &nftables.Flowtable{Table: t, Name: flowtableName, Devices: devices, Flags: nftables.FlowtableFlagsCounter}
}

// EnsureFastPath returns the work that makes the set, the flowtable and the chain, and adds devices
// to the flowtable. It leaves out devices that do not exist.
func EnsureFastPath(devices ...string) Extra { return fastPath{devices} }

type fastPath struct{ devices []string }

// String names the devices.
func (x fastPath) String() string {
	return "put " + strings.Join(x.devices, ", ") + " into flowtable " + flowtableName
}

// Needs reports that the change creates something.
func (fastPath) Needs() bool { return true }

// Lasting does nothing. It marks work that must be checked again: a removal of another bridge's last
// pair may delete the flowtable, and the next ADD may make it again without these devices.
func (fastPath) Lasting() {}

// Merge joins the devices of two extras. Of this work and a LeaveFastPath, the one that was queued later
// remains.
func (x fastPath) Merge(next Extra) (Extra, bool) {
	switch y := next.(type) {
	case fastPath:
		return fastPath{append(x.devices[:len(x.devices):len(x.devices)], y.devices...)}, true
	case leaveFastPath:
		return y, true
	}
	return x, false
}

// Plan plans what is missing.
func (x fastPath) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	have, err := c.readFastPath()
	if err != nil {
		return nil, err
	}
	missing, err := have.missing(x.devices)
	if err != nil || have.set && have.chain && have.flowtable && len(missing) == 0 {
		return nil, err
	}
	return func(enc *nftables.Conn) error { return have.write(enc, missing) }, nil
}

// fastPathState is what the kernel has for the fast path.
type fastPathState struct {
	set, chain, flowtable bool
	devices               []string
}

// readFastPath reads with one system call what the kernel has.
func (c *Conn) readFastPath() (have fastPathState, err error) {
	inet := nftables.TableFamilyINet
	spec, _ := specOf(SetFastPath)
	what := []query{
		{get: nftables.NFT_MSG_GETFLOWTABLE, family: inet, table: TableName, within: nftables.NFTA_FLOWTABLE_NAME, name: flowtableName},
		spec.query(),
		Ref{inet, TableName, chainFastPath}.query(),
	}
	there := [3]bool{}
	err = c.ask(what, func(i int, answer []netlink.Message) error {
		there[i] = true
		if i > 0 {
			return nil
		}
		for _, m := range answer {
			a, err := message(m)
			if err != nil {
				return err
			}
			for _, dev := range a.nested(nftables.NFTA_FLOWTABLE_HOOK).nested(nftables.NFTA_FLOWTABLE_DEVS) {
				have.devices = append(have.devices, unix.ByteSliceToString(dev.Data))
			}
		}
		return nil
	})
	have.flowtable, have.set, have.chain = there[0], there[1], there[2]
	return have, err
}

// missing returns the devices that exist and that the flowtable lacks.
func (s fastPathState) missing(devices []string) (missing []string, err error) {
	for _, d := range devices {
		if slices.Contains(s.devices, d) || slices.Contains(missing, d) {
			continue
		}
		there, err := linkExists(d)
		if err != nil {
			return nil, err
		}
		if there {
			missing = append(missing, d)
		}
	}
	return missing, nil
}

// linkExists reports whether the namespace of the thread has a link.
func linkExists(name string) (bool, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return false, fmt.Errorf("look for link %q: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("look for link %q: %w", name, err)
	}
	err = errors.Join(unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req), unix.Close(fd))
	if errors.Is(err, syscall.ENODEV) {
		return false, nil
	}
	return err == nil, err
}

// write queues what is missing, and the devices.
func (s fastPathState) write(enc *nftables.Conn, devices []string) error {
	t := layoutOf(nftables.TableFamilyINet).table()
	if !s.set {
		spec, _ := specOf(SetFastPath)
		if err := enc.AddSet(spec.set(), nil); err != nil {
			return fmt.Errorf("add set %s: %w", SetFastPath, err)
		}
	}
	if !s.flowtable || len(devices) > 0 {
		enc.AddFlowtable(flowtable(t, devices...))
	}
	if !s.chain {
		fastPathChain().add(enc, t, false)
	}
	return nil
}

// LeaveFastPath returns the work that deletes the set, the flowtable and the chain, if only the given
// elements need them. The flows then pass the hooks again. If other elements need the flowtable, the
// devices of the given elements stay in it, but no new flows are added for them.
func LeaveFastPath(removed ...Element) Extra { return leaveFastPath{removed} }

type leaveFastPath struct{ removed []Element }

// String names the flowtable.
func (leaveFastPath) String() string {
	return "delete flowtable " + flowtableName + " unless it is used"
}

// Guarded does nothing. It marks work that must fail after another process's change, so that no element
// which that process adds is deleted with the set.
func (leaveFastPath) Guarded() {}

// Merge joins the elements of two extras. See fastPath.Merge.
func (x leaveFastPath) Merge(next Extra) (Extra, bool) {
	switch y := next.(type) {
	case leaveFastPath:
		return leaveFastPath{append(x.removed[:len(x.removed):len(x.removed)], y.removed...)}, true
	case fastPath:
		return y, true
	}
	return x, false
}

// Plan lists the elements that stay.
func (x leaveFastPath) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	have, err := c.readFastPath()
	if err != nil || !have.set && !have.chain && !have.flowtable {
		return nil, err
	}
	all, err := c.List(SetFastPath)
	if err != nil || len(minus(all, x.removed)) > 0 {
		return nil, err
	}
	return func(enc *nftables.Conn) error { have.remove(enc); return nil }, nil
}

// remove queues the deletion of everything.
func (s fastPathState) remove(enc *nftables.Conn) {
	t := layoutOf(nftables.TableFamilyINet).table()
	if s.chain {
		chain := &nftables.Chain{Name: chainFastPath, Table: t}
		enc.FlushChain(chain)
		enc.DelChain(chain)
	}
	if s.set {
		enc.DelSet(&nftables.Set{Name: SetFastPath, Table: t})
	}
	if s.flowtable {
		enc.DelFlowtable(flowtable(t))
	}
}

// ErrNoFastPath means that the kernel has no flowtables.
var ErrNoFastPath = errors.New("the kernel has no flowtables (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD)")

// TryFastPath returns ErrNoFastPath if the kernel lacks what EnsureFastPath needs. Like nft --check,
// TryFastPath makes a flowtable, and a rule that adds flows to it, in a transaction without an end. The
// kernel loads the modules, answers, and applies nothing. If our flowtable exists, TryFastPath does not
// ask.
func (c *Conn) TryFastPath() error {
	have, err := c.readFastPath()
	if err != nil || have.flowtable {
		return err
	}
	msgs, err := encode(func(enc *nftables.Conn) error {
		t := enc.AddTable(&nftables.Table{Name: TableName + "-probe", Family: nftables.TableFamilyINet})
		enc.AddFlowtable(flowtable(t))
		chain := enc.AddChain(&nftables.Chain{Name: chainFastPath, Table: t})
		enc.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: offload()})
		return nil
	})
	if err != nil {
		return err
	}
	batch := wrap(msgs)
	end := len(batch) - 1
	sent, err := c.nl.send(batch[:end])
	if err != nil {
		return fmt.Errorf("send nftables transaction: %w", err)
	}
	var errno syscall.Errno
	err = c.answers(append(sent, batch[end]))
	if errors.As(err, &errno) && (errno == syscall.ENOENT || errno == syscall.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNoFastPath, errno)
	}
	return err
}
