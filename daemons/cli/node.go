// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/node"
	"github.com/patchbay-net/patchbay/daemons/node/lan"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/drops"
	"github.com/patchbay-net/patchbay/internal/flows"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/mesh/wirekey"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/internal/terminal"
)

const nodeLong = `Prepares a Kubernetes node for its pods, on each node, usually as a DaemonSet:

  patchbayd node --cluster-cidr 10.244.0.0/16 --cluster-cidr fd00:244::/56

The agent installs the plugins, writes the pods' network once the Node has its
podCIDRs, and keeps the routes to the other nodes: directly where they share a
link, else through a VXLAN tunnel, or encrypted by WireGuard. It enforces
network policies, and serves Services instead of kube-proxy if you ask for it.
No pod waits for it or for the API server: when both are away, pods start, those
that run keep their routes, and policies and Services stay in force.
Its state is below /var/lib/patchbay/node.`

// nodeCommand is `patchbayd node`.
type nodeCommand struct {
	NodeName   string            `long:"node-name" value-name:"NAME" env:"NODE_NAME" description:"name of this Node (default: the hostname)"`
	Kubeconfig string            `long:"kubeconfig" value-name:"FILE" env:"KUBECONFIG" description:"how to reach the API server (default: the ServiceAccount of the pod)"`
	Cluster    []string          `long:"cluster-cidr" value-name:"PREFIX" description:"the addresses of the cluster's pods, as the controller manager's --cluster-cidr; may be repeated"`
	Transport  mesh.Transport    `long:"transport" default:"auto" choice:"auto" choice:"routes" choice:"vxlan" choice:"wireguard" description:"how packets reach other nodes: auto is routes where they share a link that carries pods' packets, else vxlan; wireguard encrypts all, on all nodes"`
	Port       uint16            `long:"port" value-name:"PORT" default:"4789" description:"of the tunnel, UDP"`
	WirePort   uint16            `long:"wireguard-port" value-name:"PORT" default:"51821" description:"of WireGuard, UDP, on all nodes"`
	BinDir     string            `long:"cni-bin-dir" value-name:"DIR" default:"/opt/cni/bin" description:"where the plugins are installed; empty: they are already"`
	ConfDir    string            `long:"cni-conf-dir" value-name:"DIR" default:"/etc/cni/net.d" description:"where the pods' network is written"`
	Masquerade string            `long:"masquerade-config" value-name:"FILE" description:"destinations to which pods keep their address, in the format of ip-masq-agent; read again when it changes"`
	KeepPorts  bool              `long:"masquerade-keep-ports" description:"masqueraded packets keep their source port where they can, for programs that make holes in firewalls; of two first packets from one port at the same moment, one may be lost"`
	Egress     bool              `long:"egress-addresses" description:"pods of a namespace leave with the addresses in its annotation patchbay.net/egress"`
	Policy     string            `long:"network-policy" default:"on" choice:"on" choice:"off" description:"enforce NetworkPolicies and ClusterNetworkPolicies; off removes what an earlier run made"`
	Default    string            `long:"policy-default" default:"allow" choice:"allow" choice:"own-namespace" description:"what pods receive where no policy decides: all packets, or those of other pods only from their own namespace (all but kube-system)"`
	Unknown    string            `long:"policy-unknown" default:"closed" choice:"closed" choice:"open" description:"new pods as long as this node has never known the policies of the cluster: closed isolates them, open starts them without policies"`
	Keep       bool              `long:"policy-keep-connections" description:"a change of policies ends no connection that it denies; it applies to new ones"`
	LogGroup   uint16            `long:"policy-log-group" value-name:"GROUP" description:"send packets that policies deny to this group of NFLOG, of each rule at most 10 a second; 0: do not"`
	DropsGroup uint16            `long:"drops-group" value-name:"GROUP" default:"9472" description:"the group of NFLOG by which the kernel tells the agent dropped packets, for patchbay drops; 0: they are only counted"`
	FlowsGroup uint16            `long:"flows-group" value-name:"GROUP" default:"9473" description:"the group of NFLOG by which the kernel tells the agent new connections while patchbay flows -f runs; 0: connections are not looked at"`
	Space      string            `long:"containers-namespace" value-name:"NAME" description:"the namespace whose network policies apply to containers on the pods' network that are not pods, as of docker run (default: none apply)"`
	Labels     map[string]string `long:"containers-label" value-name:"KEY=VALUE" key-value-delimiter:"=" description:"a label by which policies select such containers; may be repeated"`
	Services   string            `long:"services" default:"off" choice:"on" choice:"off" description:"serve Services, instead of kube-proxy; off removes what an earlier run made"`
	NodePorts  []string          `long:"services-node-ports" value-name:"PREFIX" description:"addresses of this node that have node ports (default: the Node's first InternalIP of each family); may be repeated. A family without a prefix has them at all of its addresses"`
	NoExternal bool              `long:"services-ignore-external-ips" description:"externalIPs of Services have no effect: whoever may write one gets the packets to any address"`
	HideAll    bool              `long:"services-masquerade-all" description:"everything that is sent to a cluster IP gets a source address of the node, not only what does not come from pods"`
	Healthz    string            `long:"services-healthz" value-name:"ADDRESS:PORT" default:":10256" description:"serve kube-proxy's /healthz and /livez, which load balancers ask; empty: do not"`
	Balancers  string            `long:"load-balancers" default:"off" choice:"on" choice:"class" choice:"off" description:"give Services of type LoadBalancer addresses of a LAN, and answer for them: on those without loadBalancerClass and those of the class patchbay.net/lan, class only the latter"`
	Networks   string            `long:"networks" default:"off" choice:"on" choice:"files" choice:"off" description:"attach pods to the further networks that their annotation k8s.v1.cni.cncf.io/networks selects; files also writes the annotations to files, for a runtime that does not pass them (containerd before 1.5, CRI-O before 1.29); off removes the files of an earlier run"`
	NetsBin    string            `long:"networks-bin-dir" value-name:"DIR" description:"where the host has plugins of other programs for further networks (default: those of this program alone are found)"`
	NetsAlone  bool              `long:"networks-isolation" description:"pods use only definitions of their own namespace and of the namespace default"`
	Program    string            `long:"program" value-name:"FILE" description:"the program patchbay, which is installed (default: beside this one)"`
	Listen     string            `long:"listen" value-name:"ADDRESS:PORT" default:"127.0.0.1:9472" description:"serve /metrics, /healthz and /readyz; empty: do not"`

	List  nodeListCommand  `command:"ls" description:"show the Nodes as the agent of this node knows them, and what is wrong"`
	Clean nodeCleanCommand `command:"clean" description:"remove what the agent made from this node"`

	app *app
}

func newNodeCommand(a *app) *nodeCommand {
	c := &nodeCommand{app: a}
	c.List.node, c.Clean.node = c, c
	return c
}

// Execute runs the agent until a signal ends the process.
func (c *nodeCommand) Execute(args []string) error {
	if len(args) > 0 {
		return usageError{terminal.UnknownCommand(c.app.parsed.Find("node"), args[0])}
	}
	logger := log.New(c.app.log, "", log.LstdFlags)
	opts, err := c.options(paths.Default(), logger.Printf)
	if err != nil {
		return err
	}
	unlock, err := lockAgent(c.app.ctx, node.StateDir(opts.Paths))
	if err != nil {
		return err
	}
	defer unlock()
	keys, err := c.keys(opts.Paths)
	if err != nil {
		return err
	}
	if keys != nil {
		opts.Key = keys.Public
	}
	var a *node.Agent
	fabric, err := mesh.Open(mesh.Options{
		Paths: opts.Paths, Wanted: node.StateDir(opts.Paths), Keys: keys, Warn: func(err error) { a.Warn(err) },
		Detour: func(err error) { a.Detour(err) },
	})
	if err != nil {
		return err
	}
	defer fabric.Close()
	opts.Fabric = fabric
	c.listenForCommands(&opts)
	if a, err = node.New(opts); err != nil {
		return err
	}
	stop, err := serveHealth(c.Listen, a, logger)
	if err != nil {
		return err
	}
	defer stop()
	a.Run(c.app.ctx)
	return nil
}

// listenForCommands makes the sockets of patchbay drops and patchbay flows. The node does not need them, so the agent works
// without them, too.
func (c *nodeCommand) listenForCommands(o *node.Options) {
	open := func(command, path string) net.Listener {
		l, err := listen(path)
		if err != nil {
			o.Log("patchbay %s does not work: %v", command, err)
			return nil
		}
		return l
	}
	if !o.NetworkPolicy.Off && o.NetworkPolicy.DropsGroup != 0 {
		o.NetworkPolicy.DropsListener = open("drops", drops.Socket(o.Paths.Run))
	}
	if o.Flows.Group != 0 {
		o.Flows.Listener = open("flows", flows.Socket(o.Paths.Run))
	}
}

// keys returns this node's WireGuard keys, and makes them at the first start. With another
// transport it returns nil.
func (c *nodeCommand) keys(where paths.Paths) (*mesh.Keys, error) {
	if c.Transport != mesh.WireGuard {
		return nil, nil
	}
	return wirekey.Open(c.app.ctx, filepath.Join(node.StateDir(where), "wireguard"))
}

func (c *nodeCommand) options(where paths.Paths, printLine func(string, ...any)) (o node.Options, err error) {
	o = node.Options{
		Settings: plan.Settings{Transport: c.Transport, Port: c.Port, WirePort: c.WirePort, KeepPorts: c.KeepPorts},
		Config:   node.Kubeconfig(c.Kubeconfig), Paths: where, ConfDir: c.ConfDir, Log: printLine,
		MasqueradeConfig: c.Masquerade, Egress: c.Egress,
		NetworkPolicy: node.NetworkPolicy{
			Off: c.Policy == "off", KeepConnections: c.Keep, UnknownOpen: c.Unknown == "open", OwnNamespace: c.Default == "own-namespace",
			LogGroup: c.LogGroup, DropsGroup: c.DropsGroup,
		},
		Flows: node.Flows{Group: c.FlowsGroup},
	}
	if o.Node, err = c.name(); err != nil {
		return o, err
	}
	if o.Cluster, err = clusterPrefixes(c.Cluster); err != nil {
		return o, err
	}
	if o.Services, err = c.services(); err != nil {
		return o, err
	}
	if err := c.groups(); err != nil {
		return o, usageError{err}
	}
	o.Networks = node.PodNetworks{
		Further:     podnet.Further{On: c.Networks != "off", BinDir: c.NetsBin, Isolated: c.NetsAlone},
		Annotations: c.Networks == "files",
	}
	if c.NetsBin != "" && !filepath.IsAbs(c.NetsBin) {
		return o, usageError{fmt.Errorf("--networks-bin-dir %q: want an absolute path", c.NetsBin)}
	}
	o.LoadBalancers = node.LoadBalancers{On: c.Balancers != "off", Classes: lan.Classes{Unclassed: c.Balancers == "on"}}
	if o.Containers, err = node.Containers(c.Space, c.Labels); err != nil {
		return o, usageError{err}
	}
	if c.BinDir != "" {
		o.Install, err = c.installer()
	}
	return o, err
}

// groups checks that each group of NFLOG is asked for once.
func (c *nodeCommand) groups() error {
	by := map[uint16]string{}
	for _, g := range []struct {
		flag  string
		group uint16
	}{{"--policy-log-group", c.LogGroup}, {"--drops-group", c.DropsGroup}, {"--flows-group", c.FlowsGroup}} {
		if other := by[g.group]; other != "" && g.group != 0 {
			return fmt.Errorf("%s and %s are both %d: a group of NFLOG has one reader, so choose another for one of them", other, g.flag, g.group)
		}
		by[g.group] = g.flag
	}
	return nil
}

// services returns the choices for Services.
func (c *nodeCommand) services() (s node.Services, err error) {
	s.On, s.Healthz = c.Services == "on", c.Healthz
	s.IgnoreExternalIPs, s.MasqueradeAll = c.NoExternal, c.HideAll
	if s.NodePorts, err = podnet.Prefixes("--services-node-ports", c.NodePorts); err != nil {
		return s, usageError{err}
	}
	if _, _, err := net.SplitHostPort(c.Healthz); c.Healthz != "" && err != nil {
		return s, usageError{fmt.Errorf("--services-healthz %q: want ADDRESS:PORT, such as :10256: %w", c.Healthz, err)}
	}
	return s, nil
}

// name returns this Node's name.
func (c *nodeCommand) name() (string, error) {
	if c.NodeName != "" {
		return c.NodeName, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the name of this node: %w", err)
	}
	return strings.ToLower(name), nil // as the kubelet does
}

// nodeListCommand is `patchbayd node ls`.
type nodeListCommand struct {
	JSON bool `long:"json" description:"print one JSON object"`

	node *nodeCommand
}

// Execute prints what the agent has saved.
func (c *nodeListCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	self, err := c.node.name()
	if err != nil {
		return err
	}
	l, err := node.List(paths.Default(), self)
	if err != nil {
		return err
	}
	return printListing(l, c.JSON)
}

// clusterPrefixes parses the addresses of the cluster's pods.
func clusterPrefixes(texts []string) (list []netip.Prefix, err error) {
	if list, err = podnet.Prefixes("--cluster-cidr", texts); err != nil {
		return nil, usageError{err}
	}
	for i, p := range list {
		for _, other := range list[:i] {
			if p.Overlaps(other) {
				return nil, usageError{fmt.Errorf("--cluster-cidr %s overlaps %s", p, other)}
			}
		}
	}
	if len(list) == 0 {
		return nil, usageError{errors.New("--cluster-cidr is missing: the agent must know which addresses are pods")}
	}
	return list, nil
}
