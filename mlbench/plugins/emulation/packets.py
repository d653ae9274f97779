"""Define the sizes of packets on an emulated link."""

MTU = 1500  # bytes of a packet, Ethernet's
ETHERNET_HEADER = 14  # bytes before a packet, which the kernel counts with it
TCP_HEADERS = 52  # bytes of IPv4, TCP and its time stamps in a packet
TCP_DATA_SHARE = 1 - TCP_HEADERS / MTU  # of a full packet
