"""The sizes of packets on an emulated link."""

MTU = 1500  # bytes of a packet, Ethernet's
TCP_HEADERS = 52  # bytes of IPv4, TCP and its time stamps in a packet
TCP_DATA_SHARE = 1 - TCP_HEADERS / MTU  # of a full packet
