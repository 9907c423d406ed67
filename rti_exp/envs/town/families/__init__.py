"""All task families of the town, hard ones first. A new family is named here, and nowhere else."""

from rti_exp.envs.town.families.nav_easy import NavigationEasy
from rti_exp.envs.town.families.nav_hard import NavigationHard
from rti_exp.envs.town.families.pay_easy import PaymentEasy
from rti_exp.envs.town.families.pay_hard import PaymentHard
from rti_exp.envs.town.families.ret import Return
from rti_exp.envs.town.families.ret_easy import ReturnEasy
from rti_exp.envs.town.families.tel_easy import TelecomEasy
from rti_exp.envs.town.families.tel_hard import TelecomHard
from rti_exp.envs.town.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        NavigationHard(),
        TelecomHard(),
        PaymentHard(),
        Return(),
        NavigationEasy(),
        TelecomEasy(),
        PaymentEasy(),
        ReturnEasy(),
    )
}
